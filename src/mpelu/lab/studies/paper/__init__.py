"""Tables, figures and claims of the paper, one module each."""
