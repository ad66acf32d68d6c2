"""Small policies on a lane's stream: each sees the text before anybody else and may end it."""
