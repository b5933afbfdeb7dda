use super::chain::MAX_CAUSES;
use super::*;
use std::io;

#[derive(Debug, thiserror::Error)]
#[error("wrapper")]
struct Wrapper(#[source] JobError);

#[test]
fn wrapping_keeps_a_final_verdict() {
    for error in [
        JobError::quota_exhausted("p", "acct"),
        JobError::cancelled("c"),
        JobError::timed_out(None),
        JobError::unauthorized("p", "key"),
        JobError::permission_denied("no"),
        JobError::model_resolution("none"),
        JobError::deadlock("d"),
        JobError::from_kind(ErrorKind::SpendCapExceeded {
            message: "cap".into(),
        }),
        JobError::system("c", "d"),
        JobError::external("s", "d"),
        JobError::uncorrectable("u").with_source(JobError::correctable("old")),
    ] {
        let kind = error.kind().name();
        let failed = || Err::<(), _>(error.clone());
        let wrapped = failed().for_parameter("cid", 3).unwrap_err();
        assert_eq!(wrapped.kind().name(), kind);
        for wrapped in [failed().external("s"), failed().system("c")] {
            let wrapped = wrapped.unwrap_err();
            assert!(!wrapped.is_correctable(), "{kind}: {wrapped}");
            let general = ["System", "ExternalService", "Uncorrectable"];
            assert!(general.contains(&kind) || wrapped.kind().name() == kind);
        }
        let inside = Err::<(), _>(Wrapper(error.clone())).for_parameter("cid", 3);
        assert_eq!(inside.unwrap_err().kind().name(), kind);
    }
}

// case ERR-02
#[test]
fn the_explanation_is_the_message_and_a_hint() {
    let fixable = JobError::invalid_input("query", "", "must not be blank");
    let mut lines = fixable.explain_to_llm();
    assert!(lines.starts_with(&fixable.llm_message()));
    assert!(lines.contains("\n[This may be correctable"));
    lines = JobError::external("PubMed", "down").explain_to_llm();
    assert!(lines.contains("\n[This is not correctable"));
}

// case ERR-04
#[test]
fn a_system_error_names_its_component_to_a_model_and_its_detail_to_the_log() {
    let error = JobError::system("Tool instantiation", "no factory for Foo");
    assert!(error.llm_message().contains("Tool instantiation"));
    assert!(!error.llm_message().contains("Foo"));
    assert!(error.to_string().contains("no factory for Foo"));
}

#[test]
fn correctable_is_exactly_what_the_caller_can_mend() {
    for fixable in [
        JobError::invalid_input("a", 1, "r"),
        JobError::not_found("order", 7),
        JobError::guardrail("no"),
        JobError::correctable("again"),
    ] {
        assert!(fixable.is_correctable(), "{fixable}");
    }
    for not in [
        JobError::external("s", "d"),
        JobError::throttled("s", "d"),
        JobError::unauthorized("s", "r"),
        JobError::permission_denied("m"),
        JobError::system("c", "d"),
        JobError::cancelled("r"),
        JobError::timed_out(None),
        JobError::deadlock("m"),
        JobError::dependency_failed("x", JobError::correctable("inner")),
        JobError::uncorrectable("m"),
        RetrySignal::transient("p", "d").into(),
    ] {
        assert!(!not.is_correctable(), "{not}");
    }
}

// case GRD-09
#[test]
fn a_guard_refusal_speaks_as_a_violation() {
    let error = JobError::guardrail("not your order");
    assert_eq!(error.to_string(), "not your order");
    assert_eq!(error.llm_message(), "Guardrail violation: not your order");
}

// case ERR-07
#[test]
fn wrapping_never_swallows_a_retry_signal() {
    let signals: [RetrySignal; 5] = [
        RetrySignal::rate_limit("p", "429"),
        RetrySignal::overload("p", "529"),
        RetrySignal::transient("p", "502"),
        RetrySignal::truncated("m", 1_000, Some(4_000)),
        RetrySignal::correction("m", 1, JobError::correctable("parse")),
    ];
    for signal in signals {
        let wrapped = || Err::<(), _>(Wrapper(Wrapped::nest(signal.clone().into())));
        for error in [
            wrapped().external("svc").unwrap_err(),
            wrapped().system("part").unwrap_err(),
            wrapped().for_parameter("p", "v").unwrap_err(),
        ] {
            assert!(error.retry_signal().is_some(), "{error:?}");
        }
    }
}

// A caller that wraps a child's final failure must not be run again for it.
#[test]
fn a_spent_retry_budget_is_not_taken_for_a_signal() {
    let spent = JobError::uncorrectable("the retry budget (3) is spent")
        .with_source(JobError::from(RetrySignal::transient("p", "502")));
    let wrapped = Err::<(), _>(Wrapper(spent)).external("svc").unwrap_err();
    assert!(wrapped.retry_signal().is_none(), "{wrapped:?}");
}

struct Wrapped;
impl Wrapped {
    fn nest(inner: JobError) -> JobError {
        JobError::external("middle", "wrapped").with_source(inner)
    }
}

#[test]
fn wrapping_keeps_a_correctable_verdict_and_renames_the_parameter() {
    let inner = JobError::invalid_input("id", "x7", "must be a number");
    let outer = Err::<(), _>(Wrapper(inner.clone()))
        .external("svc")
        .unwrap_err();
    assert!(outer.is_correctable());
    let renamed = Err::<(), _>(inner).for_parameter("cid", "x7").unwrap_err();
    assert_eq!(
        renamed.to_string(),
        "parameter 'cid' with value 'x7' failed validation: must be a number"
    );
}

// case ERR-24
#[test]
fn the_upstream_failure_is_read_through_a_wrap_under_the_outer_service() {
    let inner = JobError::throttled("pubmed-http", "HTTP 429").with_upstream(
        UpstreamFailure::with_status(429, "pubmed-http", "rate exceeded")
            .retry_after(Duration::from_secs(42)),
    );
    let outer = Err::<(), _>(inner).external("PubMed").unwrap_err();
    let failure = outer.upstream_failure().unwrap();
    assert_eq!(failure.status, 429);
    assert_eq!(failure.retry_after, Some(Duration::from_secs(42)));
    assert_eq!(failure.service, "PubMed");
    assert_eq!(failure.detail, "rate exceeded");
}

// case ERR-27
#[test]
fn an_upstream_failure_summarises_itself() {
    let asked = UpstreamFailure::with_status(429, "PubMed", "rate exceeded")
        .retry_after(Duration::from_secs(42));
    assert_eq!(
        asked.to_string(),
        "HTTP 429 from PubMed: rate exceeded (server asked for 42s)"
    );
    assert_eq!(
        UpstreamFailure::without_response("PubMed", "connection refused").to_string(),
        "no response from PubMed: connection refused"
    );
    assert_eq!(
        UpstreamFailure::with_status(500, "", "").to_string(),
        "HTTP 500"
    );
}

// case ERR-22
#[test]
fn an_external_failure_without_a_response_has_status_zero() {
    let failure = JobError::external("PubMed", "connection refused")
        .upstream_failure()
        .unwrap();
    assert_eq!(
        (failure.status, failure.detail.as_str()),
        (0, "connection refused")
    );
}

#[test]
fn question_mark_works_on_io_errors_and_keeps_the_cause() {
    fn read() -> Result<(), JobError> {
        Err(io::Error::other("disk gone"))?;
        Ok(())
    }
    let error = read().unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::System { component, .. } if component == "io"));
    assert!(StdError::source(&error).is_some());
}

#[test]
fn a_long_value_is_cut_at_a_character() {
    let error = JobError::invalid_input("text", "ä".repeat(1_000), "too long");
    assert!(error.to_string().len() < 600);
}

// case RTY-16
#[test]
fn out_of_money_is_told_as_that_and_never_run_again() {
    let error = JobError::from_kind(ErrorKind::QuotaExhausted {
        provider: "acme".into(),
        account: "team-7".into(),
        model: Some("acme-1".into()),
        message: Some("add credit".into()),
    });
    assert!(!error.is_correctable() && error.retry_signal().is_none());
    let text = error.llm_message();
    assert!(text.starts_with("OUT OF MONEY"), "{text}");
    assert!(text.contains("acme") && text.contains("[team-7]") && text.contains("acme-1"));
    assert!(text.ends_with("add credit"), "{text}");
    let bare = JobError::quota_exhausted("acme", "team-7").llm_message();
    assert!(!bare.contains(" for ") && !bare.contains("says"), "{bare}");
}

// case ERR-01
#[test]
fn money_caps_missing_models_and_refusals_are_beyond_the_caller() {
    let overflow = ContextOverflow::estimated("m", 2, 1);
    for kind in [
        ErrorKind::QuotaExhausted {
            provider: "p".into(),
            account: "a".into(),
            model: None,
            message: None,
        },
        ErrorKind::SpendCapExceeded {
            message: "past the cap".into(),
        },
        ErrorKind::ModelNotFound { model: "m".into() },
        ErrorKind::ModelResolution {
            message: "none".into(),
        },
        ErrorKind::ProviderRefusal {
            model: "m".into(),
            category: "c".into(),
            explanation: "e".into(),
        },
        ErrorKind::ContextOverflow(overflow),
    ] {
        let error = JobError::from_kind(kind);
        assert!(!error.is_correctable(), "{error}");
        assert!(error.retry_signal().is_none());
    }
}

// case ERR-05
#[test]
fn a_final_failure_reads_the_same_to_a_model_and_keeps_its_cause() {
    let cause = JobError::external("s", "d");
    let error = JobError::from_kind(ErrorKind::SpendCapExceeded {
        message: "The cap is reached".into(),
    })
    .with_source(cause);
    assert_eq!(error.llm_message(), error.to_string());
    assert!(!error.is_correctable());
    assert!(StdError::source(&error).is_some());
}

// case ERR-10
#[test]
fn a_failed_dependency_names_itself_and_is_no_fault_of_the_input() {
    let cause = JobError::invalid_input("query", "", "must not be blank");
    let error = JobError::dependency_failed("Lookup-7", cause);
    assert!(
        matches!(error.kind(), ErrorKind::DependencyFailed { dependency }
        if dependency == "Lookup-7")
    );
    assert!(!error.is_correctable() && StdError::source(&error).is_some());
    assert!(!JobError::deadlock("both wait").is_correctable());
}

// case ERR-25
#[test]
fn an_io_error_wrapped_as_a_service_has_no_status_and_its_own_text() {
    let inner = io::Error::new(io::ErrorKind::ConnectionReset, "connection reset");
    let error = Err::<(), _>(inner).external("claims").unwrap_err();
    let failure = error.upstream_failure().unwrap();
    assert_eq!((failure.status, &*failure.detail), (0, "connection reset"));
    assert_eq!(failure.service, "claims");
}

// case ST-12
#[test]
fn the_two_terminations_explain_themselves() {
    let timed_out = JobError::timed_out(Some(Duration::from_secs(300)));
    assert!(timed_out.llm_message().contains("time budget"));
    assert!(timed_out.llm_message().contains("(300s)"));
    assert!(!JobError::timed_out(None).llm_message().contains('('));
    let cancelled = JobError::cancelled("operator");
    assert!(cancelled.llm_message().contains("cancelled"));
    for error in [timed_out, cancelled] {
        assert!(error.explain_to_llm().contains("not correctable"));
    }
}

fn wrapped(times: usize) -> JobError {
    (0..times).fold(JobError::uncorrectable("the first"), |inner, at| {
        JobError::uncorrectable(format!("wrapped {at}")).with_source(inner)
    })
}

/// Walks the causes without a bound of its own.
fn length(error: &JobError) -> usize {
    std::iter::successors(Some(error as &(dyn StdError + 'static)), |error| {
        StdError::source(*error)
    })
    .count()
}

/// Owns an error that nobody can see.
#[derive(Debug, thiserror::Error)]
#[error("opaque: {0}")]
struct Opaque(JobError);

#[test]
fn an_error_wrapped_without_end_keeps_its_two_ends_and_says_what_is_left_out() {
    let times = 100_000;
    let error = wrapped(times);
    assert!(length(&error) <= MAX_CAUSES, "{}", length(&error));
    assert_eq!(error.to_string(), "wrapped 99999");
    let mut causes = Vec::new();
    let mut cause = StdError::source(&error);
    while let Some(next) = cause {
        causes.push(next.to_string());
        cause = next.source();
    }
    assert_eq!(causes.last().map(String::as_str), Some("the first"));
    let left_out = causes
        .iter()
        .find(|text| text.contains("left out"))
        .unwrap();
    let count: usize = left_out.split(' ').next().unwrap().parse().unwrap();
    // Every other link is there: the error itself, and its causes but the one that says so.
    assert_eq!(count + causes.len(), times + 1);
    assert!(format!("{error:?}").len() < 4_096);
    drop(error);
}

#[test]
fn chains_over_attached_failures_corrections_and_opaque_errors_are_dropped_flat() {
    let times = 20_000;
    let mut attached = JobError::uncorrectable("first");
    let mut corrected = attached.clone();
    let mut opaque = attached.clone();
    let mut both = attached.clone();
    for _ in 0..times {
        attached = JobError::uncorrectable("again").with_attached(attached);
        corrected = RetrySignal::correction("m", 1, corrected).into();
        opaque = JobError::uncorrectable("again").with_source(Opaque(opaque));
        both = JobError::uncorrectable("again")
            .with_source(both.clone())
            .with_attached(both);
    }
    for error in [attached, corrected, opaque, both] {
        assert!(format!("{error:?} {error} {}", error.llm_message()).len() < 1_000_000);
        let _ = error.upstream_failure();
        let _ = error.clone().redacted(&super::Redactor::new(["secret"]));
        drop(error);
    }
}

#[test]
fn a_cut_keeps_the_signal_and_the_answer_that_lie_beyond_it() {
    let limited = UpstreamFailure::with_status(429, "acme", "slow down");
    let mut signal = JobError::from(RetrySignal::rate_limit("acme", "slow down"));
    let mut answered = JobError::external("acme", "slow down").with_upstream(limited);
    let mut spent = JobError::uncorrectable("spent").with_source(signal.clone());
    for _ in 0..200 {
        signal = JobError::system("part", "again").with_source(signal);
        answered = JobError::system("part", "again").with_source(answered);
        spent = JobError::system("part", "again").with_source(spent);
    }
    let passed_on = |error: JobError| Err::<(), _>(Wrapper(error)).external("svc").unwrap_err();
    assert!(passed_on(signal).retry_signal().is_some());
    assert!(passed_on(spent).retry_signal().is_none());
    assert_eq!(answered.upstream_failure().map(|f| f.status), Some(429));
}

#[test]
fn an_upstreams_answer_is_looked_for_once_a_link() {
    let nest = |make: fn() -> JobError| (0..60).fold(make(), |inner, _| make().with_source(inner));
    // Exponential in the depth, neither would be through before the machine is gone.
    assert!(
        nest(|| JobError::uncorrectable("x"))
            .upstream_failure()
            .is_none()
    );
    let failure = nest(|| JobError::external("svc", "x")).upstream_failure();
    assert_eq!(failure.map(|failure| failure.status), Some(0));
}

#[test]
fn a_destructor_that_panics_keeps_no_other_from_being_run() {
    #[derive(Debug, thiserror::Error)]
    #[error("bomb")]
    struct Bomb(Arc<()>);
    impl Drop for Bomb {
        fn drop(&mut self) {
            panic!("in drop");
        }
    }
    let kept = Arc::new(());
    let error = JobError::uncorrectable("x")
        .with_source(Bomb(Arc::clone(&kept)))
        .with_attached(JobError::uncorrectable("y").with_source(Bomb(Arc::clone(&kept))));
    drop(error);
    assert_eq!(Arc::strong_count(&kept), 1);
}
