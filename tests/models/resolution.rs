//! Which model a job gets, what it is granted for it, and the clients that call it.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use nucleo_runtime::events::{Event, LimiterChange};
use nucleo_runtime::llm::{
    Attachment, ClientProvider, Conversation, EmbeddingsPurpose, FixedClients, FixedSecrets,
    LlmClient, ScriptedClient, SecretStore, Step,
};
use nucleo_runtime::models::{
    Catalog, DefaultComplianceEnvelope, Depth, Floor, Grade, InputKind, ModelBinding, ModelBound,
    ModelKind, ModelPicker, ModelSlot, ModelSpec, OutputSize, Seat, Situation, TokenCounter, Usage,
};
use nucleo_runtime::testing::{Fault, FaultyProvider, quiesce};
use nucleo_runtime::{ErrorKind, JobDispatcher, JobError, JobRequirements, RetrySignal, job_fn};

use crate::support::{ANSWER, Run, asks, catalog, priced, question, quota};

const VECTORS: ModelSlot = ModelSlot::new("vectors");
const VERDICT: ModelSlot = ModelSlot::new("verdict");

/// A run on made-up models that answer 42.
fn starter() -> Run {
    Run::new(|builder| {
        builder
            .catalog(Catalog::starter())
            .provider(FaultyProvider::new("scripted", "42"))
    })
}

#[test]
fn a_job_asks_for_a_grade_and_gets_the_model_that_is_pinned_for_it() {
    let run = starter();
    assert_eq!(*run.ask(Grade::Small).get().unwrap(), "starter-small: 42");
    assert_eq!(*run.ask(Grade::Mega).get().unwrap(), "starter-mega: 42");
    let best = job_fn(
        || {
            JobRequirements::none().model(
                ANSWER,
                Floor::Ceiling,
                Depth::Quick,
                10,
                OutputSize::Verdict,
            )
        },
        |resources, _| Ok(resources.model(ANSWER)?.spec().id.clone()),
    );
    assert_eq!(*run.submit(best).get().unwrap(), "starter-mega");
    assert!(run.dispatcher.catalog().get("starter-xl").is_some());
}

#[test]
fn one_model_with_its_client_is_enough() {
    let spec = ModelSpec::new("only", "acme", quota(1_000_000, 100)).unwrap();
    let run = Run::new(|builder| builder.model(spec, Arc::new(ScriptedClient::from_fn(|_| "42"))));
    assert_eq!(*run.ask(Grade::Micro).get().unwrap(), "only: 42");
    assert_eq!(
        *run.ask(Grade::Mega).get().unwrap(),
        "only: 42",
        "a floor is lowered"
    );
}

#[test]
fn without_a_model_the_job_fails_and_says_so() {
    let run = Run::new(|builder| builder);
    let error = run.ask(Grade::Small).get().unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::ModelResolution { .. }));
    assert!(
        error.to_string().contains("the catalog has none"),
        "{error}"
    );
}

// case SUB-09
#[test]
fn each_attempt_has_a_fresh_binding_and_the_submissions_stays_unresolved() {
    let provider = FaultyProvider::new("scripted", "42").fails([Fault::ServerError]);
    let run = Run::new(|builder| builder.catalog(Catalog::starter()).provider(provider));
    let minted: Arc<Mutex<Vec<Arc<ModelBinding>>>> = Arc::default();
    let minting = Arc::clone(&minted);
    let job = job_fn(
        move || {
            let needs = JobRequirements::none().model(
                ANSWER,
                Grade::Small,
                Depth::Immediate,
                10,
                OutputSize::Verdict,
            );
            let binding = needs.binding(ANSWER).unwrap();
            minting.lock().unwrap().push(Arc::clone(binding));
            needs
        },
        |resources, _| {
            let model = resources.model(ANSWER)?;
            model.client().respond(&question())?;
            Ok(Arc::clone(model.binding()))
        },
    );
    let handle = run.submit(job);
    run.pass_retry(&mut 0);
    let used = handle.get().unwrap();
    let minted = minted.lock().unwrap();
    let resolved: Vec<_> = minted
        .iter()
        .map(|binding| binding.resolved().is_some())
        .collect();
    assert_eq!(resolved, [false, true, true]);
    assert!(Arc::ptr_eq(&minted[2], &used) && !Arc::ptr_eq(&minted[1], &minted[2]));
    assert_eq!(used.reservation().unwrap().total(), 10 + 1_024);
}

#[test]
fn a_slot_that_is_declared_twice_is_refused_at_submission() {
    let run = starter();
    let twice = job_fn(
        || {
            JobRequirements::none()
                .decision(VERDICT, 5)
                .embeddings(VERDICT, 5)
        },
        |_, _| Ok(()),
    );
    let error = run.submit(twice).get().unwrap_err();
    assert!(error.to_string().contains("declared twice"), "{error}");
}

// case DEM-06
#[test]
fn a_pin_is_judged_for_its_kind_when_it_is_made_and_unresolved_until_the_gate() {
    let run = starter();
    let spec = Arc::clone(run.dispatcher.catalog().get("starter-large").unwrap());
    let pin = move |spec: &Arc<ModelSpec>| {
        JobRequirements::none().model_pinned(
            ANSWER,
            spec,
            Depth::Immediate,
            64,
            OutputSize::Verdict,
        )
    };
    assert!(pin(&spec).binding(ANSWER).unwrap().resolved().is_none());
    let job = job_fn(
        move || pin(&spec),
        |resources, _| {
            let model = resources.model(ANSWER)?;
            Ok((model.spec().id.clone(), model.binding().pinned().is_some()))
        },
    );
    assert_eq!(
        *run.submit(job).get().unwrap(),
        ("starter-large".to_owned(), true)
    );

    let vectors = Arc::clone(run.dispatcher.catalog().get("starter-embeddings").unwrap());
    let wrong = job_fn(move || pin(&vectors), |_, _| Ok(()));
    let error = run.submit(wrong).get().unwrap_err();
    assert!(
        matches!(error.kind(), ErrorKind::InvalidInput { .. }),
        "{error}"
    );
    assert!(error.to_string().contains("starter-embeddings"), "{error}");
}

/// The grants that were told of an account, by name, with their amounts.
fn granted(run: &Run, job: &str) -> Vec<(String, u64)> {
    quiesce(&run.dispatcher);
    let mut found: Vec<_> = run
        .told
        .events_of(job)
        .iter()
        .filter_map(|event| match &**event {
            Event::Limiter(limiter) if limiter.change == LimiterChange::GrantedImmediate => {
                Some((limiter.account.to_string(), limiter.amount))
            }
            _ => None,
        })
        .collect();
    found.sort();
    found
}

fn decides() -> impl nucleo_runtime::Job<Output = usize> {
    job_fn(
        || JobRequirements::none().decision(VERDICT, 40),
        |resources, _| {
            let model = resources.decision(VERDICT)?;
            assert!(resources.model(VERDICT).is_err() && resources.embeddings(VERDICT).is_err());
            Ok(model.client().decide("is it 42?", &["no", "42"])?.choice)
        },
    )
}

// case DEM-01
// case DEM-02
#[test]
fn a_decision_takes_a_permit_of_its_machine_or_tokens_of_its_quota() {
    let at_once = ModelBound::Concurrency(1.try_into().unwrap());
    for (bound, amount) in [(at_once, 1), (quota(15_000_000, 1_200), 40)] {
        let spec = ModelSpec::new("judge", "own", bound)
            .unwrap()
            .kind(ModelKind::Decision);
        let run = Run::new(|builder| {
            builder
                .catalog(catalog([spec]))
                .provider(FaultyProvider::new("own", "42"))
        });
        let handle = run.submit(decides());
        assert_eq!(*handle.get().unwrap(), 1);
        assert_eq!(
            granted(&run, handle.job_id()),
            [("http".to_owned(), 1), ("judge".to_owned(), amount)]
        );
        let limiters = run.dispatcher.limiters();
        assert_eq!(limiters.gate_of("judge").is_some(), amount == 1);
        assert_eq!(limiters.bucket_of("judge").is_some(), amount == 40);
        if let Some(gate) = limiters.gate_of("judge") {
            run.submit(decides()).get().unwrap();
            assert!(Arc::ptr_eq(&gate, &limiters.gate_of("judge").unwrap()));
            assert_eq!((gate.capacity(), gate.in_use()), (1, 0));
        }
    }
}

fn embeds() -> impl nucleo_runtime::Job<Output = usize> {
    job_fn(
        || JobRequirements::none().embeddings(VECTORS, 500),
        |resources, _| {
            let model = resources.embeddings(VECTORS)?;
            let texts = ["the tide", "the ebb"];
            let answer = model.client().embed(&texts, EmbeddingsPurpose::Query)?;
            Ok(answer.vectors.len())
        },
    )
}

// case OBC-05
#[test]
fn a_call_for_vectors_is_recorded_with_its_purpose_and_its_price() {
    let provider = FaultyProvider::new("scripted", "").fails([Fault::Unauthorized]);
    let run = Run::new(|builder| builder.catalog(Catalog::starter()).provider(provider));
    for succeeds in [false, true] {
        let handle = run.submit(embeds());
        assert_eq!(handle.get().is_ok(), succeeds);
        quiesce(&run.dispatcher);
        let told = run.told.events_of(handle.job_id());
        let terminal = told.iter().find(|event| event.is_terminal()).unwrap();
        let [call] = terminal.model_calls() else {
            panic!("one call");
        };
        assert_eq!(
            (call.kind, call.successful),
            (ModelKind::Embeddings, succeeds)
        );
        assert_eq!(call.purpose, Some(EmbeddingsPurpose::Query));
        assert_eq!(&*call.model, "starter-embeddings");
        assert_eq!(call.cause.is_some(), !succeeds);
        let usage = succeeds.then(|| Usage::new(4, 0));
        assert_eq!(call.usage, usage);
        assert_eq!(call.cost.is_some(), succeeds);
    }
}

/// Answers whichever embeddings model it is told, and any other as usual.
#[derive(Debug)]
struct Switch {
    to: Arc<Mutex<&'static str>>,
}

impl ModelPicker for Switch {
    fn pick(&self, seat: &Seat<'_>, situation: &Situation<'_>) -> Result<Arc<ModelSpec>, JobError> {
        assert!(seat.job.is_some_and(|job| job.user() == "alice"));
        let id = *self.to.lock().unwrap();
        Ok(Arc::clone(situation.catalog().get(id).unwrap()))
    }
}

#[test]
fn the_first_embeddings_model_holds_for_the_dispatchers_life() {
    let to = Arc::new(Mutex::new("one"));
    let spec = |id: &str| {
        ModelSpec::new(id, "own", quota(1_000_000, 100))
            .unwrap()
            .kind(ModelKind::Embeddings)
    };
    let run = Run::new(|builder| {
        builder
            .catalog(catalog([spec("one"), spec("two")]))
            .provider(FaultyProvider::new("own", ""))
            .picker(Switch {
                to: Arc::clone(&to),
            })
    });
    assert_eq!(*run.submit(embeds()).get().unwrap(), 2);
    *to.lock().unwrap() = "two";
    let error = run.submit(embeds()).get().unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::ModelResolution { .. }));
    let text = error.to_string();
    assert!(text.contains("one") && text.contains("two"), "{text}");
    *to.lock().unwrap() = "one";
    assert_eq!(*run.submit(embeds()).get().unwrap(), 2);
}

// case ENV-01
// case ENV-02
#[test]
fn an_envelope_is_sealed_once_and_a_look_does_not_seal_it() {
    let built = || {
        let mut sharing = priced("m", "acme", Grade::Small);
        sharing.shares_data = true;
        JobDispatcher::builder()
            .catalog(catalog([sharing]))
            .provider(FaultyProvider::new("acme", "42"))
            .build()
            .unwrap()
    };
    let workflow = nucleo_runtime::Workflow::new("alice", "asks").unwrap();
    let permits = || DefaultComplianceEnvelope::new().data_sharing(true);

    let dispatcher = built();
    let model = Arc::clone(dispatcher.catalog().get("m").unwrap());
    assert!(dispatcher.compliance_envelope().judge(&model).is_err());
    dispatcher.seal_compliance_envelope(permits()).unwrap();
    assert!(dispatcher.compliance_envelope().judge(&model).is_ok());
    let again = dispatcher.seal_compliance_envelope(permits()).unwrap_err();
    assert!(matches!(again.kind(), ErrorKind::IllegalState { .. }));
    dispatcher.start().unwrap();
    let handle = dispatcher.submit(&workflow, asks(Grade::Small)).unwrap();
    assert_eq!(*handle.get().unwrap(), "m: 42");

    let unsealed = built();
    unsealed.start().unwrap();
    let late = unsealed.seal_compliance_envelope(permits()).unwrap_err();
    assert!(matches!(late.kind(), ErrorKind::IllegalState { .. }));
    let handle = unsealed.submit(&workflow, asks(Grade::Small)).unwrap();
    let error = handle.get().unwrap_err();
    assert!(error.to_string().contains("purposes of its own"), "{error}");
}

#[test]
fn a_provider_that_nobody_calls_needs_no_credentials_and_one_that_is_called_is_built_once() {
    let needy = FaultyProvider::new("needy", "never").quoting("NEEDY_KEY");
    let ready = FaultyProvider::new("ready", "42");
    let run = Run::new(|builder| {
        builder
            .catalog(catalog([
                priced("first", "needy", Grade::Small),
                priced("second", "ready", Grade::Small),
                priced("top", "needy", Grade::Mega),
            ]))
            .provider(needy.clone())
            .provider(ready.clone())
            .secrets(FixedSecrets::new([("NEEDY_KEY", " ")]))
    });
    for _ in 0..3 {
        assert_eq!(*run.ask(Grade::Small).get().unwrap(), "second: 42");
    }
    assert_eq!((needy.builds(), ready.builds()), (0, 1));
    let pinned = Arc::clone(run.dispatcher.catalog().get("top").unwrap());
    let job = job_fn(
        move || {
            JobRequirements::none().model_pinned(
                ANSWER,
                &pinned,
                Depth::Quick,
                1,
                OutputSize::Verdict,
            )
        },
        |_, _| Ok(()),
    );
    let error = run.submit(job).get().unwrap_err();
    assert!(
        error
            .to_string()
            .contains("the secret NEEDY_KEY is not set"),
        "{error}"
    );
}

#[derive(Debug)]
struct Fickle {
    builds: AtomicUsize,
}

impl ClientProvider for Fickle {
    fn key(&self) -> &str {
        "fickle"
    }

    fn llm(&self, _: &dyn SecretStore) -> Result<Arc<dyn LlmClient>, JobError> {
        match self.builds.fetch_add(1, Ordering::SeqCst) {
            0 => Err(JobError::external("fickle", "not now")),
            1 => panic!("not now either"),
            _ => Ok(Arc::new(ScriptedClient::from_fn(|_| "42"))),
        }
    }
}

#[test]
fn a_client_that_could_not_be_built_is_built_at_the_next_need() {
    let run = Run::new(|builder| {
        builder
            .catalog(catalog([priced("m", "fickle", Grade::Small)]))
            .provider(Fickle {
                builds: AtomicUsize::new(0),
            })
    });
    let errors = [0, 1].map(|_| run.ask(Grade::Small).get().unwrap_err().to_string());
    assert!(errors[0].contains("not now") && errors[1].contains("not now either"));
    assert_eq!(*run.ask(Grade::Small).get().unwrap(), "m: 42");
}

#[test]
fn two_providers_of_one_key_and_an_empty_key_are_refused() {
    let build = |keys: [&'static str; 2]| {
        let builder = JobDispatcher::builder();
        keys.into_iter()
            .fold(builder, |builder, key| {
                builder.provider(FixedClients::new(key))
            })
            .build()
            .unwrap_err()
    };
    let twice = build(["a", "a"]);
    assert_eq!(twice.field, "provider");
    assert!(twice.rule.contains("'a'"), "{twice}");
    assert!(build(["a", " "]).rule.contains("must not be empty"));
    let client: Arc<dyn LlmClient> = Arc::new(ScriptedClient::from_fn(|_| ""));
    let spec = || ModelSpec::new("m", "p", quota(1, 1)).unwrap();
    let twice = JobDispatcher::builder()
        .model(spec(), Arc::clone(&client))
        .model(spec(), client)
        .build()
        .unwrap_err();
    assert_eq!(twice.field, "model");
}

fn shows(declared: bool) -> impl nucleo_runtime::Job<Output = String> {
    job_fn(
        move || {
            let needs = JobRequirements::none().model(
                ANSWER,
                Grade::Small,
                Depth::Immediate,
                10,
                OutputSize::Verdict,
            );
            if declared {
                needs.sends(ANSWER, InputKind::Images)
            } else {
                needs
            }
        },
        |resources, _| {
            let picture = Attachment::image("image/png", [1_u8, 2, 3]);
            let shown = Conversation::new().user_with("what is this?", [picture]);
            let model = resources.model(ANSWER)?;
            model.client().respond(&shown)?;
            Ok(model.spec().id.clone())
        },
    )
}

#[test]
fn what_was_not_declared_is_not_sent() {
    let provider = FaultyProvider::new("scripted", "42");
    let run = Run::new(|builder| {
        builder
            .catalog(Catalog::starter())
            .provider(provider.clone())
    });
    let error = run.submit(shows(false)).get().unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::IllegalState { .. }));
    assert!(error.to_string().contains("InputKind::Images"), "{error}");
    assert_eq!(provider.calls(), 0);
    assert_eq!(
        *run.submit(shows(true)).get().unwrap(),
        "starter-medium",
        "the least that takes pictures"
    );
    let undeclared = job_fn(
        || JobRequirements::none().sends(ANSWER, InputKind::Images),
        |_, _| Ok(()),
    );
    let error = run.submit(undeclared).get().unwrap_err();
    assert!(
        error.to_string().contains("declare the model first"),
        "{error}"
    );
}

#[derive(Debug)]
struct Words;

impl TokenCounter for Words {
    fn count(&self, text: &str) -> u32 {
        text.split_whitespace().count() as u32
    }
}

#[test]
fn a_prompt_is_counted_by_the_dispatchers_counter() {
    let run = Run::new(|builder| {
        builder
            .catalog(Catalog::starter())
            .provider(FaultyProvider::new("scripted", "42"))
            .token_counter(Words)
    });
    let job = job_fn(
        || {
            JobRequirements::none().model_for_prompt(
                ANSWER,
                Grade::Small,
                Depth::Immediate,
                "one two three",
                OutputSize::Verdict,
            )
        },
        |resources, _| Ok(resources.model(ANSWER)?.binding().reservation()),
    );
    let reserved = run.submit(job).get().unwrap().unwrap();
    assert_eq!((reserved.input, reserved.total()), (3, 3 + 1_024));
}

/// Two endpoints of the same weights.
fn two_routes() -> (Run, FaultyProvider, FaultyProvider) {
    let (one, other) = (
        FaultyProvider::new("one", "42"),
        FaultyProvider::new("other", "42"),
    );
    let route = |id: &str, provider: &str| priced(id, provider, Grade::Large).identity("weights");
    let run = Run::new(|builder| {
        builder
            .catalog(catalog([route("here", "one"), route("there", "other")]))
            .provider(one.clone())
            .provider(other.clone())
    });
    (run, one, other)
}

#[test]
fn a_retry_leaves_an_overloaded_route_at_once_and_work_comes_back() {
    let (run, one, other) = two_routes();
    let one = one.fails([Fault::Overload]);
    let handle = run.ask(Grade::Large);
    run.pass_retry(&mut 0);
    assert_eq!(*handle.get().unwrap(), "there: 42");
    assert_eq!((one.calls(), other.calls()), (1, 1));

    // A slowdown of 2.5: new work moves in a share of 0.6, to the route that is not throttled.
    let bucket = run.dispatcher.limiters().bucket_of("here").unwrap();
    assert_eq!(bucket.throttle(), 1.5);
    let served = |count: usize| {
        let mut there = 0;
        for _ in 0..count {
            bucket.record_backpressure(1, run_clock(&run));
            while bucket.throttle() > 1.5 {
                bucket.record_success(run_clock(&run));
            }
            there += usize::from(*run.ask(Grade::Large).get().unwrap() == "there: 42");
        }
        there
    };
    let there = served(400);
    assert!((170..=310).contains(&there), "about 240 of 400: {there}");

    while bucket.throttle() > 0.9 {
        bucket.record_success(run_clock(&run));
    }
    for _ in 0..50 {
        assert_eq!(*run.ask(Grade::Large).get().unwrap(), "here: 42");
    }
}

fn run_clock(run: &Run) -> std::time::Instant {
    run.dispatcher.clock().now()
}

#[test]
fn a_rate_limited_retry_stays_and_a_second_overload_excludes_both() {
    let (run, one, other) = two_routes();
    let one = one.fails([Fault::RateLimit, Fault::Overload]);
    let other = other.fails([Fault::Overload]);
    let handle = run.ask(Grade::Large);
    let mut seen = 0;
    for _ in 0..3 {
        run.pass_retry(&mut seen);
    }
    // With every route overloaded it stays on the first.
    assert_eq!(*handle.get().unwrap(), "here: 42");
    assert_eq!((one.calls(), other.calls()), (3, 1));
}

#[test]
fn a_signal_of_a_clients_own_is_told_with_its_model() {
    let spec = ModelSpec::new("m", "acme", quota(1_000_000, 100)).unwrap();
    let client = ScriptedClient::from_steps([
        Step::fail(RetrySignal::rate_limit("acme", "slow down").into()),
        Step::reply("42"),
    ]);
    let run = Run::new(|builder| builder.model(spec, Arc::new(client)));
    let handle = run.ask(Grade::Small);
    run.pass_retry(&mut 0);
    handle.get().unwrap();
    let retries = run.retries();
    let [nucleo_runtime::events::RetryEvent::RateLimit(retry)] = &retries[..] else {
        panic!("{retries:?}");
    };
    assert_eq!((&*retry.model, retry.throttle), ("m", 0.5));
}
