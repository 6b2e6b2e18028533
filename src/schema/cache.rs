//! TODO: schema/cache
