//! TODO: activity/record
