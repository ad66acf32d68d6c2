"""The asynchronous part of OpenAI's API, served from the lanes: an unchanged client talks to it."""
