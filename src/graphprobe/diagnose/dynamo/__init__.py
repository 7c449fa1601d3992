"""What Dynamo made of a program held against the program itself, and the statement that it got wrong."""
