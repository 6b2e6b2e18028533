//! Target `answers`: what nodes of a fleet ask each other about records, and answer.
//!
//! Input: the bytes of a question, or of an answer. Either is read or refused, within the bounds of a question; and what is read
//! is the same once it is written and read again.

use mcpproxy::fleet::record_questions::{
    AnswerHead, MAX_ASKED_RECORDS, MAX_RANGES, RecordQuestion, read_buckets,
};

/// The fuzz target.
pub fn run(data: &[u8]) {
    if let Some(question) = RecordQuestion::decode(data) {
        assert_eq!(RecordQuestion::decode(&question.encode()).as_ref(), Some(&question));
        if let RecordQuestion::List { ranges, filter, limit, .. } = question {
            assert!(ranges.len() <= MAX_RANGES && limit <= MAX_ASKED_RECORDS);
            let _ = filter.filter();
        }
    }
    if let Ok((head, records)) = AnswerHead::records(data) {
        let again = AnswerHead::records(&head.with_records(&records));
        assert_eq!(again, Ok((head, records)));
    }
    if let Ok((head, buckets)) = read_buckets(data) {
        let pairs = buckets.iter().map(|(bucket, stats)| (*bucket, stats));
        assert_eq!(read_buckets(&head.with_buckets(pairs)), Ok((head, buckets)));
    }
}
