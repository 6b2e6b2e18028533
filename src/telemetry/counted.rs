//! What is counted of calls: outcomes, refusals, decisions, each with its name in metrics. Pure.

/// Makes an enum whose values are counted.
macro_rules! counted {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident $text:literal),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum $name { $($(#[$vdoc])* $variant),+ }

        impl $name {
            /// Every value.
            pub const ALL: [Self; [$($text),+].len()] = [$(Self::$variant),+];

            /// Its name.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text),+ }
            }
        }
    };
}

counted! {
    /// How a call ended.
    Outcome {
        /// It was answered.
        Success "success",
        /// It failed, upstream or on the way.
        Error "error",
        /// Its answer was not let in.
        Blocked "blocked",
        /// It was not let out.
        Rejected "rejected",
    }
}

counted! {
    /// Why a call has no answer of an upstream.
    Refusal {
        /// It cannot be read.
        Unreadable "unreadable",
        /// Its headers say something else than its arguments.
        Headers "headers",
        /// Its intent is missing, malformed or another than the variant.
        Intent "intent",
        /// Annotations or capability stand against it.
        Gate "gate",
        /// Its arguments do not fit the schema of its tool.
        Arguments "arguments",
        /// There are too many at a time, or they come too often.
        Limited "limited",
        /// There is no such server or tool.
        Unknown "unknown",
        /// The upstream failed.
        Upstream "upstream",
        /// It is no call of a tool and cannot be answered.
        Failed "failed",
        /// The activity log takes no record.
        Unavailable "unavailable",
    }
}

counted! {
    /// What judging an answer or the arguments of a call came to: of which, and the verdict.
    Judged {
        /// An answer is as its schema wants it.
        AnswerPassed "answer_passed",
        /// A schema, a guard or what is missing stands against an answer.
        AnswerFailed "answer_failed",
        /// Nothing of an answer was to be judged.
        AnswerUnasked "answer_unasked",
        /// There is no verdict about an answer: the judge failed, or the call ended before it.
        AnswerUnjudged "answer_unjudged",
        /// Arguments are as their schema wants them.
        ArgumentsPassed "arguments_passed",
        /// Arguments do not fit.
        ArgumentsFailed "arguments_failed",
        /// There is no verdict about arguments: the judge failed.
        ArgumentsUnjudged "arguments_unjudged",
    }
}

counted! {
    /// A decision that left a record of its own: what was decided, and by which policy.
    Decision {
        /// An answer was blocked.
        OutputBlocked "output_validation_blocked",
        /// An answer was warned of.
        OutputWarned "output_validation_warning",
        /// A call was blocked for its arguments.
        InputBlocked "input_validation_blocked",
        /// A call was warned of for its arguments.
        InputWarned "input_validation_warning",
        /// A call was blocked for its intent.
        IntentBlocked "intent_blocked",
        /// A call was warned of for its intent.
        IntentWarned "intent_warning",
        /// A call was blocked for its tool's capability.
        CapabilityBlocked "capability_blocked",
        /// A call was warned of for its tool's capability.
        CapabilityWarned "capability_warning",
        /// A call was blocked because its principal's token was not made for it.
        ScopeBlocked "scope_blocked",
        /// A call was blocked because the tool's definition waits for an operator.
        CatalogBlocked "catalog_blocked",
        /// A definition was warned of.
        CatalogWarned "catalog_warning",
        /// A call was blocked by a rule.
        RulesBlocked "rules_blocked",
        /// A rule would have blocked a call, were it in force.
        RulesWarned "rules_warning",
        /// A call was blocked by a limit.
        LimitBlocked "limit_blocked",
        /// A call was blocked because nobody agreed to it.
        ApprovalBlocked "approval_blocked",
    }
}
