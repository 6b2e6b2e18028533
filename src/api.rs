//! TODO: api
