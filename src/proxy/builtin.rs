//! TODO: proxy/builtin
