//! What events are, carry and say.

use std::sync::Arc;
use std::time::Duration;

use super::progress::{ContentStream, Phase, Severity, WorkflowComplete};
use super::retry::ThrottleKind;
use super::sample::{self, at, sample_snapshot, started_snapshot};
use super::{
    DependencyFailure, Event, EventFamily, EventFilter, EventKind, JobCompleted, LifecycleEvent,
    LimiterChange, MessageBus, ModelCall, Observer, OrchestratorResumed, RejectReason,
    Subscription,
};
use crate::error::JobError;
use crate::job::{JobSnapshot, JobState, Metadata};

fn job() -> JobSnapshot {
    sample_snapshot("Lookup", "w-1")
}

const _: () = {
    const fn shared<T: Send + Sync + ?Sized>() {}
    shared::<Event>();
    shared::<MessageBus>();
    shared::<Subscription>();
    shared::<EventFilter>();
    shared::<dyn Observer>();
};

// case EVT-01
#[test]
fn every_event_is_of_exactly_one_family() {
    let events = sample::one_of_each(&job());
    let kinds: Vec<_> = events.iter().map(Event::kind).collect();
    assert_eq!(kinds, EventKind::ALL);
    for event in &events {
        // The enum's variant and the kind's family are written down apart from each other.
        let family = match event {
            Event::Lifecycle(_) => EventFamily::Lifecycle,
            Event::Workflow(_) => EventFamily::Workflow,
            Event::Progress(_) => EventFamily::Progress,
            Event::Notification(_) => EventFamily::Notification,
            Event::Retry(_) => EventFamily::Retry,
            Event::Limiter(_) => EventFamily::Limiter,
            Event::Scheduler(_) => EventFamily::Scheduler,
            Event::Heartbeat(_) => EventFamily::Heartbeat,
            Event::App(_) => EventFamily::App,
        };
        assert_eq!(event.family(), family, "{event:?}");
    }
    let members = |family: EventFamily| {
        let all = EventKind::ALL.iter();
        all.filter(|kind| kind.family() == family).count()
    };
    assert_eq!(members(EventFamily::Lifecycle), 9);
    assert_eq!(members(EventFamily::Workflow), 1);
    assert_eq!(members(EventFamily::Retry), 4);
    assert_eq!(members(EventFamily::Limiter), 1);
    assert_eq!(members(EventFamily::Scheduler), 4);
    assert_eq!(members(EventFamily::Heartbeat), 6);

    let of = |test: fn(&Event) -> bool| -> Vec<_> {
        let hits = events.iter().filter(|event| test(event));
        hits.map(Event::kind).collect()
    };
    assert_eq!(of(Event::is_success), [EventKind::JobCompleted]);
    assert_eq!(
        of(Event::is_failure),
        [
            EventKind::JobFailed,
            EventKind::JobTimedOut,
            EventKind::DependencyFailure
        ]
    );
    assert_eq!(
        of(|event| event.terminal().is_some()),
        [
            EventKind::JobCompleted,
            EventKind::JobFailed,
            EventKind::JobTimedOut,
            EventKind::JobCancelled
        ]
    );
    assert_eq!(of(Event::is_terminal).len(), 5);
}

// case EVT-02
#[test]
fn a_cancellation_is_terminal_and_neither_success_nor_failure() {
    let event = sample::cancelled(&job(), false);
    assert!(event.is_terminal());
    assert!(!event.is_success() && !event.is_failure());
    assert!(event.cause().is_none());
}

// case EVT-04
#[test]
fn every_event_bears_the_instant_it_was_made_at_and_its_job_if_it_has_one() {
    let job = job();
    for event in sample::one_of_each(&job) {
        assert_eq!(event.timestamp(), at());
        match event.family() {
            EventFamily::Scheduler | EventFamily::Heartbeat => {
                assert!(event.snapshot().is_none(), "{event:?}");
            }
            _ => assert_eq!(event.snapshot(), Some(&job), "{event:?}"),
        }
    }
    let jobless = Event::Limiter(sample::limiter(LimiterChange::Released, None));
    assert!(jobless.snapshot().is_none());
}

// case EVT-05
// case EVT-06
// case EVT-09
#[test]
fn lifecycle_messages_tell_the_step_and_the_attempt() {
    let job = job();
    let table = [
        (sample::started(&job, 3), "Job started (attempt 3)"),
        (
            sample::completed(&job, None),
            "Job completed successfully (attempt 2)",
        ),
        (sample::cancelled(&job, false), "Job cancelled"),
        (sample::cancelled(&job, true), "Job forcefully cancelled"),
        (
            sample::timed_out(&job, Some(Duration::from_secs(300))),
            "Job timed out after 300 seconds",
        ),
        (
            sample::timed_out(&job, Some(Duration::from_millis(1_500))),
            "Job timed out after 1.5 seconds",
        ),
        (sample::timed_out(&job, None), "Job timed out"),
        (sample::scheduled(&job), "Job scheduled (priority 5)"),
    ];
    for (event, message) in table {
        assert_eq!(event.message(), message);
    }
}

// case EVT-07
#[test]
fn a_failure_tells_its_error() {
    let event = sample::failed(&job(), Some(JobError::uncorrectable("boom")));
    assert_eq!(event.message(), "Job failed: boom");
    assert_eq!(event.cause().unwrap().to_string(), "boom");
    assert_eq!(event.human_message(), None);
    let silent = sample::failed(&job(), None);
    assert_eq!(silent.message(), "Job failed: unknown error");
    assert!(silent.cause().is_none());
    let kind = JobError::uncorrectable("boom").with_human_message("Search failed");
    let human = sample::failed(&job(), Some(kind));
    assert_eq!(human.human_message().as_deref(), Some("Search failed"));
}

// case EVT-10
#[test]
fn a_dependency_failure_tells_the_failure_that_it_began_with() {
    let origin = JobError::external("PubMed", "down");
    let chain = JobError::dependency_failed("b", JobError::dependency_failed("a", origin.clone()));
    let prefix = "Job failed due to dependency failure: ";
    for error in [origin, chain] {
        let event = sample::dependency_failure(&job(), Some(error));
        assert_eq!(
            event.message(),
            format!("{prefix}ExternalService: PubMed failed: down")
        );
        assert!(event.model_calls().is_empty());
        assert!(event.cause().is_some());
    }
    let unknown = sample::dependency_failure(&job(), None);
    assert_eq!(unknown.message(), format!("{prefix}Unknown"));
    assert!(matches!(
        unknown,
        Event::Lifecycle(LifecycleEvent::DependencyFailure(DependencyFailure {
            error: None,
            ..
        }))
    ));
}

fn completed_of(event: Event) -> JobCompleted {
    match event {
        Event::Lifecycle(LifecycleEvent::Completed(event)) => event,
        other => panic!("{other:?}"),
    }
}

// case EVT-11
#[test]
fn a_result_is_read_as_its_own_type_and_nothing_is_null() {
    struct Secret(&'static str);
    let event = completed_of(sample::completed(&job(), Some(Arc::new(Secret("s3cr3t")))));
    assert_eq!(event.result::<Secret>().unwrap().0, "s3cr3t");
    assert!(event.result::<String>().is_none());
    assert!(!format!("{event:?}").contains("s3cr3t"));

    let empty = completed_of(sample::completed(&job(), None));
    assert!(empty.result::<String>().is_none());
    assert_eq!(*empty.terminal.model_calls, [] as [ModelCall; 0]);
    assert!(empty.terminal.metadata.is_empty());
}

// case EVT-12
#[test]
fn a_duration_runs_from_the_first_start_to_the_events_own_end() {
    let job = started_snapshot(at() - Duration::from_secs(42));
    let event = sample::failed(&job, None);
    let info = event.terminal().unwrap();
    assert_eq!(info.duration, Duration::from_secs(42));
    assert_eq!(info.completed_at, at());
    assert_eq!(info.metadata, *job.metadata());

    let never = sample::cancelled(&self::job(), false);
    assert_eq!(never.terminal().unwrap().duration, Duration::ZERO);
    assert!(never.snapshot().unwrap().started_at().is_none());

    // The calendar was set back while the job ran.
    let back = sample::failed(&started_snapshot(at() + Duration::from_secs(9)), None);
    assert_eq!(back.terminal().unwrap().duration, Duration::ZERO);
}

// case EVT-14
#[test]
fn a_percentage_sets_the_tone_of_progress() {
    let table = [
        (None, Phase::StatusUpdate),
        (Some(0), Phase::Starting),
        (Some(1), Phase::Progressing),
        (Some(99), Phase::Progressing),
        (Some(100), Phase::Completing),
    ];
    for (percent, phase) in table {
        let event = sample::progress(&job(), Some("3 of 10"), percent);
        assert_eq!(event.phase(), Some(phase));
        assert_eq!(event.message(), "3 of 10");
        assert_eq!(event.human_message().as_deref(), Some("3 of 10"));
    }
    assert_eq!(
        sample::progress(&job(), None, Some(7)).human_message(),
        None
    );
}

// case EVT-15
#[test]
fn a_stream_goes_on_until_its_last_piece() {
    let mut facts: Metadata = [("file", "a.txt")].into_iter().collect();
    let piece =
        |text: &str, last, facts: &Metadata| ContentStream::new(job(), at(), text, last, facts);
    let text = "ä".repeat(80);
    let going = piece(&text, false, &facts);
    facts.insert("file", "b.txt");
    let kept = going.artifacts().unwrap().get("file").unwrap();
    assert_eq!(kept.as_text(), Some("a.txt"));
    assert_eq!((going.phase(), going.percent()), (Phase::Progressing, None));
    let event = Event::from(going);
    assert_eq!(event.title(), Some("Streaming Content"));
    assert_eq!(event.message(), format!("{}...", "ä".repeat(50)));
    assert_eq!(event.human_message(), Some(text));

    let last = piece("end", true, &Metadata::new());
    assert!(last.artifacts().is_none());
    assert_eq!(
        (last.phase(), last.percent()),
        (Phase::Completing, Some(100))
    );
    let event = Event::from(last);
    assert_eq!(event.title(), Some("Streaming Complete"));
    assert_eq!(event.message(), "end");
}

// case EVT-16
#[test]
fn the_end_of_a_workflow_gives_its_reason() {
    let well = Event::from(WorkflowComplete::succeeded(job(), at()));
    assert_eq!(well.message(), "Workflow completed successfully");
    assert_eq!(well.phase(), Some(Phase::Completing));
    let badly = Event::from(WorkflowComplete::failed(job(), at(), "no such order"));
    assert_eq!(badly.message(), "no such order");
    assert_eq!(badly.human_message().as_deref(), Some("no such order"));
    assert_eq!(badly.phase(), Some(Phase::Failing));
    assert_eq!(badly.title(), Some("Workflow Failed"));
}

// case EVT-17
#[test]
fn limiter_messages_tell_the_level_the_wait_or_the_reason() {
    let says = |change, edit: fn(&mut super::LimiterEvent)| {
        let mut event = sample::limiter(change, None);
        edit(&mut event);
        Event::from(event).message()
    };
    assert_eq!(
        says(LimiterChange::Held, |event| {
            (event.in_use, event.waiters) = (3, 2);
        }),
        "pubmed HELD (3/3, waiters=2)"
    );
    assert_eq!(
        says(LimiterChange::GrantedImmediate, |_| {}),
        "pubmed GRANTED (1/3)"
    );
    assert_eq!(
        says(LimiterChange::GrantedFromHold, |event| {
            event.wait = Duration::from_millis(1_500);
        }),
        "pubmed GRANTED after 1500ms"
    );
    assert_eq!(
        says(LimiterChange::Rejected, |event| {
            event.reason = Some(RejectReason::CircuitBlocked);
        }),
        "pubmed REJECTED (circuit_blocked)"
    );
    assert_eq!(
        says(LimiterChange::Released, |event| event.in_use = 0),
        "pubmed RELEASED (0/3)"
    );
}

#[test]
fn a_reason_for_a_rejection_is_spelt_as_metrics_spell_it() {
    let reasons = [
        (RejectReason::Cancelled, "cancelled"),
        (RejectReason::CircuitBlocked, "circuit_blocked"),
        (RejectReason::Aborted, "aborted"),
        (RejectReason::Shutdown, "shutdown"),
    ];
    for (reason, text) in reasons {
        assert_eq!(reason.as_str(), text);
        assert_eq!(reason.to_string(), text);
    }
}

// case EVT-19
#[test]
fn a_rate_limit_retry_tells_which_limit_and_how_long() {
    let mut event = sample::rate_limit(&job(), ThrottleKind::Acceleration);
    (event.throttle, event.attempt) = (0.5, 2);
    event.delay = Some(Duration::from_secs(12));
    assert_eq!(
        Event::Retry(super::RetryEvent::RateLimit(event)).message(),
        "Hit acceleration limit (system throttle: 1.5x) for gpt-x. \
         Retrying in ~12 seconds (attempt 2)"
    );
    for limit in [ThrottleKind::Capacity, ThrottleKind::Unknown] {
        let mut event = sample::rate_limit(&job(), limit);
        event.delay = Some(Duration::from_millis(2_600));
        let event = Event::from(event);
        let says = "Hit capacity limit for gpt-x. Retrying in ~3 seconds (attempt 1)";
        assert_eq!(event.message(), says);
        assert_eq!(event.human_message().as_deref(), Some(says));
    }
    let at_once = Event::from(sample::rate_limit(&job(), ThrottleKind::Unknown));
    assert!(at_once.message().contains("~0 seconds"));
}

// case EVT-20
// case EVT-21
#[test]
fn the_other_retries_tell_what_went_wrong_and_what_comes_next() {
    assert_eq!(
        Event::from(sample::transient(&job())).message(),
        "Server error from openai: 502 bad gateway. Retrying in ~20 seconds (attempt 3)"
    );
    assert_eq!(
        Event::from(sample::truncation(&job())).message(),
        "Output truncated at 4096 tokens on gpt-x. Retrying with budget 8192."
    );
}

// case EVT-22
#[test]
fn a_correction_names_the_model_the_failure_and_the_attempt() {
    let message = Event::from(sample::correction(&job())).message();
    for part in ["gpt-x", "Correctable", "attempt 2"] {
        assert!(message.contains(part), "{message}");
    }
}

// case EVT-24
#[test]
fn a_severity_sets_the_tone_of_a_notification() {
    let job = job().derive(JobState::Running, 1, "at work");
    let table = [
        (Severity::Error, Phase::Error),
        (Severity::Success, Phase::Completing),
        (Severity::Warning, Phase::Message),
        (Severity::Info, Phase::Message),
    ];
    for (severity, phase) in table {
        let event = sample::notification(&job, severity);
        assert_eq!(event.phase(), phase);
        assert_eq!(event.state(), JobState::Running);
        let event = Event::from(event);
        assert_eq!(event.title(), Some("Disk"));
        assert_eq!(event.message(), "Disk: almost full");
        assert_eq!(event.human_message().as_deref(), Some("almost full"));
    }
}

// case EVT-25
#[test]
fn an_orchestrator_is_ready_or_at_work() {
    assert_eq!(sample::idle(&job()).message(), "Ready");
    let resumed = OrchestratorResumed {
        snapshot: job(),
        at: at(),
    };
    assert_eq!(Event::from(resumed).message(), "Processing");
}

#[test]
fn an_application_event_speaks_for_itself() {
    let event = sample::app(sample::Payment, None);
    assert_eq!(event.message(), "payment of 3 EUR");
    assert_eq!(event.human_message().as_deref(), Some("You paid 3 EUR"));
    let plain = sample::app(sample::ChatMessage, None);
    assert_eq!(plain.message(), "chat-message-complete");
    assert_eq!(plain.human_message(), None);
    let Event::App(envelope) = &plain else {
        panic!("{plain:?}")
    };
    assert!(envelope.downcast::<sample::ChatMessage>().is_some());
    assert!(envelope.downcast::<sample::Payment>().is_none());
}

#[test]
fn every_event_has_a_message() {
    for event in sample::one_of_each(&job()) {
        assert!(!event.message().trim().is_empty(), "{event:?}");
    }
}
