//! TODO: activity/retention
