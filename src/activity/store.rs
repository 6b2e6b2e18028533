//! TODO: activity/store
