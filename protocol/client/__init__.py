"""What a client makes of a daemon's answers: values, from the JSON of the status socket."""
