//! TODO: proxy/retrieve
