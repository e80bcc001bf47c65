"""Real ranks: started, spoken to, failing, ended; in a kernel, too."""
