"""A flash sale: a Django site and a Flask app sell from one stock under one lock.

``python -m example_project.demo``
"""
