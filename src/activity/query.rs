//! TODO: activity/query
