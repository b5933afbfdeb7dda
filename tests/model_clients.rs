//! What a job's model client does besides calling: it records, it tells the account, it stops.

use std::num::{NonZeroU32, NonZeroUsize};
use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use nucleo_runtime::events::{
    Event, EventFilter, EventKind, LimiterChange, ModelCall, ProgressEvent,
};
use nucleo_runtime::llm::{
    CallOptions, Conversation, LlmClient, LlmResponse, ScriptedClient, Step, StreamChunk, Usage,
};
use nucleo_runtime::models::{Depth, Grade, ModelBound, ModelSlot, ModelSpec, OutputSize};
use nucleo_runtime::testing::quiesce;
use nucleo_runtime::{
    Clock, ErrorKind, Job, JobContext, JobDispatcher, JobError, JobHandle, JobRequirements,
    JobResources, ManualClock, RetrySignal, SystemClock, Workflow,
};

const ANSWER: ModelSlot = ModelSlot::new("answer");

/// A dispatcher with one model, and everything that it told.
struct Bench {
    dispatcher: JobDispatcher,
    told: Arc<Mutex<Vec<Arc<Event>>>>,
    _subscription: nucleo_runtime::events::Subscription,
}

impl Bench {
    fn new(client: impl LlmClient) -> Self {
        Self::on(Arc::new(SystemClock), Arc::new(client))
    }

    fn on(clock: Arc<dyn Clock>, client: Arc<dyn LlmClient>) -> Self {
        let bound = ModelBound::Quota {
            tokens_per_minute: NonZeroU32::new(1_000_000).unwrap(),
            requests_per_minute: NonZeroU32::new(1_000),
        };
        let spec = ModelSpec::new("model-a", "acme", bound)
            .and_then(|spec| spec.limits(100_000, 16_000))
            .unwrap();
        let dispatcher = JobDispatcher::builder()
            .clock(clock)
            .model(spec, client)
            .build()
            .unwrap();
        dispatcher.start().unwrap();
        let told: Arc<Mutex<Vec<Arc<Event>>>> = Arc::default();
        let sink = Arc::clone(&told);
        let observer = move |event: &Arc<Event>| sink.lock().unwrap().push(Arc::clone(event));
        let subscription = dispatcher
            .subscribe(EventFilter::all(), Arc::new(observer))
            .unwrap();
        Self {
            dispatcher,
            told,
            _subscription: subscription,
        }
    }

    fn submit<T: Send + Sync + 'static>(
        &self,
        work: impl FnMut(&JobResources, &JobContext) -> Result<T, JobError> + Send + 'static,
    ) -> JobHandle<T> {
        let workflow = Workflow::new("alice", "asks").unwrap();
        self.dispatcher.submit(&workflow, Asks { work }).unwrap()
    }

    fn events(&self) -> Vec<Arc<Event>> {
        quiesce(&self.dispatcher);
        self.told.lock().unwrap().clone()
    }

    fn terminal(&self, id: &str) -> Arc<Event> {
        self.events()
            .into_iter()
            .find(|event| {
                event.is_terminal() && event.snapshot().is_some_and(|job| job.job_id() == id)
            })
            .unwrap()
    }

    fn calls(&self, id: &str) -> Vec<ModelCall> {
        self.terminal(id).model_calls().to_vec()
    }

    /// What the model's account said of itself at each grant.
    fn indicators(&self) -> Vec<Option<String>> {
        self.events()
            .iter()
            .filter_map(|event| match &**event {
                Event::Limiter(limiter)
                    if &*limiter.account == "model-a"
                        && limiter.change == LimiterChange::GrantedImmediate =>
                {
                    Some(limiter.indicator.clone())
                }
                _ => None,
            })
            .collect()
    }
}

/// A job with one model slot that runs at most once.
struct Asks<F> {
    work: F,
}

impl<T, F> Job for Asks<F>
where
    T: Send + Sync + 'static,
    F: FnMut(&JobResources, &JobContext) -> Result<T, JobError> + Send + 'static,
{
    type Output = T;

    fn upstream_retries(&self) -> u32 {
        0
    }

    fn timeout(&self) -> Option<Duration> {
        Some(Duration::from_secs(60))
    }

    fn requirements(&self) -> JobRequirements {
        JobRequirements::none().model(ANSWER, Grade::Small, Depth::Quick, 100, OutputSize::Compact)
    }

    fn execute(&mut self, resources: &JobResources, context: &JobContext) -> Result<T, JobError> {
        (self.work)(resources, context)
    }
}

fn question() -> Conversation {
    Conversation::new().user("what is six times seven?")
}

fn respond(resources: &JobResources, _: &JobContext) -> Result<LlmResponse, JobError> {
    resources.model(ANSWER)?.client().respond(&question())
}

// case OBC-01
#[test]
fn an_answer_is_handed_on_and_recorded_once() {
    let bench = Bench::new(ScriptedClient::from_steps([LlmResponse::new(
        "42",
        Usage::new(7, 1),
    )]));
    let job = bench.submit(|resources, context| {
        assert_eq!(resources.model(ANSWER)?.client().model_id(), "model-a");
        respond(resources, context)
    });
    assert_eq!(
        *job.get().unwrap(),
        LlmResponse::new("42", Usage::new(7, 1))
    );
    let [call] = &bench.calls(job.job_id())[..] else {
        panic!("one call");
    };
    assert!(call.successful && call.reason.is_none() && call.cause.is_none());
    assert_eq!(&*call.model, "model-a");
    assert_eq!(call.usage, Some(Usage::new(7, 1)));
    assert_eq!(call.cost, None, "the model has no price");
    assert_eq!(call.stop_reason.as_deref(), Some("END_TURN"));
    assert!(call.started_at > SystemTime::UNIX_EPOCH && call.ended_at >= call.started_at);
}

// case OBC-02
#[test]
fn a_failure_propagates_as_itself_and_is_recorded_with_its_cause() {
    let bench = Bench::new(ScriptedClient::from_steps([Step::refusal("harm", "no")]));
    let job = bench.submit(respond);
    let error = job.get().unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::ProviderRefusal { .. }));
    let [call] = &bench.calls(job.job_id())[..] else {
        panic!("one call");
    };
    assert!(!call.successful);
    assert_eq!(call.reason.as_deref(), Some(&*error.to_string()));
    assert!(matches!(
        call.cause.as_ref().map(JobError::kind),
        Some(ErrorKind::ProviderRefusal { .. })
    ));
    assert_eq!(&*call.model, "model-a");
    assert_eq!(call.stop_reason.as_deref(), Some("REFUSAL"));
    assert!(call.started_at > SystemTime::UNIX_EPOCH && call.ended_at >= call.started_at);
}

// case OBC-04
#[test]
fn a_stream_is_delivered_published_and_recorded_once_from_its_start() {
    let clock = ManualClock::new();
    let client =
        ScriptedClient::from_steps(["one two three"]).piece_chars(NonZeroUsize::new(4).unwrap());
    let bench = Bench::on(Arc::new(clock.clone()), Arc::new(client));
    let job = bench.submit(|resources, _| {
        let mut pieces = Vec::new();
        let response = resources
            .model(ANSWER)?
            .client()
            .stream(&question(), |chunk| pieces.push(chunk.clone()))?;
        Ok((response.text().to_owned(), pieces))
    });
    let result = job.get().unwrap();
    let (text, pieces) = &*result;
    assert_eq!(text, "one two three");
    let expected = [
        StreamChunk::new("one ", false),
        StreamChunk::new("two ", false),
        StreamChunk::new("thre", false),
        StreamChunk::new("e", true),
    ];
    assert_eq!(pieces[..], expected);

    let published: Vec<_> = bench
        .events()
        .iter()
        .filter_map(|event| match &**event {
            Event::Progress(ProgressEvent::Content(piece)) => {
                assert_eq!(piece.snapshot.job_id(), job.job_id());
                Some(StreamChunk::new(&*piece.chunk, piece.last))
            }
            _ => None,
        })
        .collect();
    assert_eq!(published, expected);
    let [call] = &bench.calls(job.job_id())[..] else {
        panic!("one call");
    };
    assert!(call.successful);
    assert_eq!(call.started_at, clock.wall());
}

#[test]
fn the_account_hears_of_backpressure_and_of_success_once_a_call() {
    let bench = Bench::new(ScriptedClient::from_steps([
        Step::rate_limit(),
        Step::overload(),
        Step::transient(),
        Step::reply("1"),
        Step::reply("2"),
        Step::reply("3"),
        Step::reply("4"),
    ]));
    let mut failed = 0;
    for _ in 0..7 {
        failed += usize::from(bench.submit(respond).get().is_err());
    }
    assert_eq!(failed, 3);
    let throttle = |factor: &str| Some(format!("throttle:{factor}x"));
    assert_eq!(
        bench.indicators(),
        [
            None,
            throttle("1.5"),
            throttle("3.0"),
            throttle("3.0"),
            throttle("3.0"),
            throttle("3.0"),
            throttle("2.8"),
        ],
        "0.5 for a 429, 1.5 for a 529, nothing for a 503, and 0.2 off at the third success"
    );
}

// case RTY-21
#[test]
fn a_stream_is_asked_for_again_only_before_its_first_piece() {
    let bench = Bench::new(ScriptedClient::from_steps([
        Step::rate_limit(),
        Step::overload().after_delivering("so"),
        Step::truncated().after_delivering("so"),
        Step::fail(JobError::unauthorized("acme", "expired")).after_delivering("so"),
    ]));
    let stream = || {
        let job = bench.submit(|resources, _| {
            let result = resources
                .model(ANSWER)?
                .client()
                .stream(&question(), |_| {});
            // As its own result, so that the runtime does not act on it.
            Ok(result.map(drop))
        });
        job.get().unwrap().as_ref().clone().unwrap_err()
    };
    let before = stream();
    assert!(matches!(
        before.retry_signal(),
        Some(RetrySignal::RateLimit(_))
    ));
    let overloaded = stream();
    assert!(
        matches!(overloaded.kind(), ErrorKind::Uncorrectable { message }
        if message.contains("mid-stream"))
    );
    assert_eq!(
        overloaded.upstream_failure().map(|failure| failure.status),
        Some(529)
    );
    let truncated = stream();
    assert!(truncated.retry_signal().is_none());
    assert!(truncated.to_string().contains("mid-stream"), "{truncated}");
    assert!(matches!(stream().kind(), ErrorKind::Unauthorized { .. }));
    assert_eq!(
        bench.indicators().last(),
        Some(&Some("throttle:3.0x".to_owned())),
        "the throttle rises all the same"
    );
}

#[test]
fn a_call_ends_when_its_job_is_cancelled() {
    let clock = ManualClock::new();
    let (called, calls) = mpsc::channel();
    let client = ScriptedClient::from_fn(move |_| {
        called.send(()).unwrap();
        "too late"
    })
    .latency(Duration::from_secs(30));
    let bench = Bench::on(Arc::new(clock), Arc::new(client));
    let job = bench.submit(respond);
    calls.recv().unwrap();
    assert!(job.cancel("not needed any more"));
    assert!(job.get().unwrap_err().is_cancelled());
    let [call] = &bench.calls(job.job_id())[..] else {
        panic!("one call");
    };
    assert!(!call.successful);
    assert!(call.cause.as_ref().is_some_and(JobError::is_cancelled));
}

#[test]
fn a_call_ends_when_its_job_times_out() {
    let clock = ManualClock::new();
    let (called, calls) = mpsc::channel();
    let client = ScriptedClient::from_fn(move |_| {
        called.send(()).unwrap();
        "too late"
    })
    .latency(Duration::from_secs(3_600));
    let bench = Bench::on(Arc::new(clock.clone()), Arc::new(client));
    let job = bench.submit(respond);
    calls.recv().unwrap();
    clock.advance(Duration::from_secs(60));
    assert!(job.get().unwrap_err().is_timed_out());
    assert_eq!(bench.terminal(job.job_id()).kind(), EventKind::JobTimedOut);
}

#[test]
fn a_job_that_was_told_to_stop_calls_nobody() {
    let client = Arc::new(ScriptedClient::from_steps(["never"]));
    let bench = Bench::on(Arc::new(SystemClock), Arc::clone(&client) as _);
    let (ready, is_ready) = mpsc::channel();
    let (go, goes) = mpsc::channel::<()>();
    let job = bench.submit(move |resources, context| {
        ready.send(()).unwrap();
        goes.recv().unwrap();
        respond(resources, context)
    });
    is_ready.recv().unwrap();
    job.cancel("no");
    go.send(()).unwrap();
    assert!(job.get().unwrap_err().is_cancelled());
    assert_eq!(client.calls(), 0);
    assert_eq!(bench.calls(job.job_id()), []);
}

#[test]
fn a_client_that_panics_fails_its_call_and_is_recorded() {
    let bench = Bench::new(ScriptedClient::from_fn(|_| -> Step { panic!("boom") }));
    let job = bench.submit(respond);
    let error = job.get().unwrap_err();
    assert!(
        matches!(error.kind(), ErrorKind::System { component, details }
        if component == "model call" && details.contains("boom"))
    );
    let calls = bench.calls(job.job_id());
    assert_eq!(calls.len(), 1);
    assert!(!calls[0].successful);
}

#[test]
fn a_call_may_write_what_was_reserved_for_answer_and_thinking() {
    struct Ceiling;
    impl LlmClient for Ceiling {
        fn respond(
            &self,
            _: &ModelSpec,
            _: &Conversation,
            options: &CallOptions,
        ) -> Result<LlmResponse, JobError> {
            let ceiling = options.max_output_tokens.to_string();
            Ok(LlmResponse::new(ceiling, Usage::default()))
        }
    }
    let bench = Bench::new(Ceiling);
    let job = bench.submit(respond);
    // 4 096 of a compact answer, and the least that is budgeted for thinking.
    assert_eq!(job.get().unwrap().text(), "5120");
    let granted = bench.events().iter().find_map(|event| match &**event {
        Event::Limiter(limiter) if &*limiter.account == "model-a" => Some(limiter.amount),
        _ => None,
    });
    assert_eq!(granted, Some(5_120 + 100));
}

#[test]
fn a_slot_that_was_not_declared_is_named() {
    let bench = Bench::new(ScriptedClient::from_steps(["never"]));
    let job = bench.submit(|resources, _| {
        let other = ModelSlot::new("other");
        resources.model(other).map(|model| model.spec().id.clone())
    });
    let error = job.get().unwrap_err();
    assert!(error.to_string().contains("'other'"), "{error}");
}

// case ST-22
#[test]
fn a_caller_back_from_get_finds_the_calls_with_the_terminal_event_and_nowhere_else() {
    // Two hundred runs, on two quotas so that none of them waits for its minute.
    for _ in 0..2 {
        let bench = Bench::new(ScriptedClient::from_fn(|_| {
            Step::from(LlmResponse::new("42", Usage::new(7, 1)))
        }));
        for _ in 0..100 {
            let job = bench.submit(respond);
            job.get().unwrap();
            assert!(!bench.dispatcher.cancel(job.job_id(), "late"));
            assert_eq!(bench.calls(job.job_id()).len(), 1);
        }
    }
}
