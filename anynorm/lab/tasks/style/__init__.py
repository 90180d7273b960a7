"""Style transfer: any style by one decoder, or one network per style."""
