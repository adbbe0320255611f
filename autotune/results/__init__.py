"""What a study found: ranking, recommendation, tables and the report; reads records only."""
