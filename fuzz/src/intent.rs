//! Target `intent`: the arguments of a call tool never cause a panic, ambiguous ones are never accepted, and admission
//! denies every call that it must deny.
//!
//! Input: a byte that selects the tool's hints, the variant and the settings, then `arguments`.

use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use mcpproxy_json::tape::{self, Scratch};
use mcpproxy_policy::intent::{CallArguments, Operation, Requirement, Settings};
use mcpproxy_policy::tool::{Annotations, CapabilityOverride, Rules, SideEffect, StatedBy, Tool};
use mcpproxy_policy::{
    self as policy, Access, Admission, AdmissionRequest, Denial, Principal, SessionFacts,
    ToolAccess, admit,
};

pub fn run(data: &[u8]) {
    let Some((&pick, raw)) = data.split_first() else { return };
    let bit = |at: u8| pick >> at & 1 == 1;
    let raw = Bytes::copy_from_slice(raw);
    let mut scratch = Scratch::new();
    // As in the caller of this code: a request that two parsers could read differently is not processed further.
    let checked = tape::check_unique(&raw, tape::MAX_DEPTH, &mut scratch);
    // The fast check of small documents accepts nothing that the tape refuses.
    assert_eq!(checked, scratch.read([&raw[..]], |_| ()));
    if checked.is_err() {
        return;
    }
    let Ok(call) = CallArguments::parse(&raw, None, &mut scratch) else { return };

    assert_eq!(tape::check_unique(&call.arguments, tape::MAX_DEPTH, &mut scratch), Ok(()));
    assert!(call.arguments.trim_ascii_start().starts_with(b"{"));
    if let Some(record) = call.intent.record() {
        assert!(serde_json::from_str::<serde_json::Value>(record).is_ok(), "{record}");
    }

    let annotations = Annotations {
        read_only_hint: bit(0).then_some(true),
        destructive_hint: bit(1).then_some(true),
        ..Annotations::default()
    };
    let rules: Rules<CapabilityOverride> = if bit(2) {
        let side_effect = Some(if bit(3) { SideEffect::Write } else { SideEffect::Destructive });
        let stated = CapabilityOverride { side_effect, ..CapabilityOverride::default() };
        Rules::from(std::collections::BTreeMap::from([("*".into(), stated)]))
    } else {
        Rules::default()
    };
    let variant = Operation::ALL[usize::from(pick >> 4) % 3];
    let required = Settings { strict_server_validation: bit(6), ..Settings::default() };
    let inferred = Settings { operation_type: Requirement::Inferred, ..required };
    let tool = Arc::new(Tool::named(call.tool(), annotations, &rules));

    let stated = call.intent.operation();
    let admitted = |settings: &Settings| {
        let intent = call.intent.check(variant, settings)?;
        let access = ToolAccess::declared(Arc::clone(&tool), &intent);
        let request = AdmissionRequest {
            principal: &Principal::Anonymous,
            access: Access::Tool(access),
            arguments: &call.arguments,
            meta: b"",
            inputs: b"",
            intent: Some(intent),
            client: "",
            session: SessionFacts::default(),
            carries_out: false,
            now: SystemTime::UNIX_EPOCH,
        };
        let settings = policy::Settings { intent: *settings, ..policy::Settings::default() };
        match admit(request, &settings) {
            Admission::Permit(permit) => Ok(permit),
            Admission::Pending(pending) => panic!("nothing here needs approval: {pending:?}"),
            Admission::Queued(queued) => panic!("there are no limits: {queued:?}"),
            Admission::Denial(denial) => Err::<_, Denial>(denial),
        }
    };
    let (strictly, loosely) = (admitted(&required), admitted(&inferred));
    if let Ok(permit) = &strictly {
        let Access::Tool(access) = permit.access() else { panic!("a tool was asked for") };
        assert_eq!((access.operation(), stated), (variant, Some(variant)));
        assert!(
            loosely.is_ok(),
            "permitted with a required operation type, refused with an inferred one"
        );
    }
    if stated.is_some_and(|stated| stated != variant) {
        assert!(strictly.is_err() && loosely.is_err(), "the two keys differ");
    }
    let marked = tool.capability.side_effect == SideEffect::Destructive
        && (tool.side_effect_by == StatedBy::Operator || required.strict_server_validation);
    if marked && variant != Operation::Destructive {
        assert!(strictly.is_err() && loosely.is_err(), "marked destructive");
    }
}
