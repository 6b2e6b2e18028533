//! TODO: proxy/call
