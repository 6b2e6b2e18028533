//! TODO: schema/tape_json
