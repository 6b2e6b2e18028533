//! TODO: activity/writer
