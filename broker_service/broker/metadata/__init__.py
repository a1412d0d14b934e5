"""The tables that a broker keeps beside the log: topics, consumer groups, committed offsets, known slaves, users and
policies.
"""
