//! TODO: downstream/http
