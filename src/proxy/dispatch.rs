//! TODO: proxy/dispatch
