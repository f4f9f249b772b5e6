"""Small environments that come with Headrace, and their gymnasium ids."""
