"""The documentation: its pages, and the modules that build the site and run the code of pages."""
