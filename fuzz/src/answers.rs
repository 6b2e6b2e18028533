//! Target `answers`: questions about records between nodes of a fleet, and their answers.
//!
//! Input: the bytes of a question or of an answer. Each is either decoded within the bounds of a question, or refused.
//! A decoded one is unchanged after it is encoded and decoded again.

use mcpproxy_fleet::record_questions::{
    AnswerHead, MAX_ASKED_RECORDS, MAX_RANGES, RecordQuestion, read_buckets,
};

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
