//! TODO: upstream/http
