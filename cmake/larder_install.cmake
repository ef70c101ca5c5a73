# What an installed prefix holds; filled in with the client library.
