"""Programs and strategies made at random, and the command that holds what they compute on ranks against one device."""
