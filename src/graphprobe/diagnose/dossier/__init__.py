"""The dossier: a folder that shows one fault to people who have torch and nothing else."""
