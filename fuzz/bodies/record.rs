//! The activity codec and redaction: any bytes are read or refused, what is read is written back
//! the same, and redaction neither fails nor grows without bound.

pub fn body(data: &[u8]) {
    use mcpproxy::activity::{codec, query, record::Payload, redact::Redactor, segment, stats};

    let _ = codec::head_block(data);
    let _ = codec::body_block(data);
    let _ = codec::decode_body(data);
    let term = query::Term::new(query::Field::Tool, b"tool");
    let _ = segment::Bitmap::find(data, term);
    let _ = segment::Bounds::decode(data);
    if let Ok(head) = codec::decode_head(data) {
        let mut again = Vec::new();
        codec::encode_head(&head, &mut again);
        assert_eq!(codec::decode_head(&again), Ok(head));
    }
    if let Ok(stats) = stats::Stats::decode(data) {
        assert_eq!(stats::Stats::decode(&stats.encode()), Ok(stats));
    }
    let redactor = Redactor::new(&[]);
    for limit in [data.len(), data.len() / 2] {
        let payload = Payload::cut(data, limit);
        let (kept, total) = redactor.payload(&payload);
        assert!(total >= kept.len() as u64);
        assert!(kept.len() <= 16 * (limit + 16));
    }
}
