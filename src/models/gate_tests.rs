//! From a need to a model, without a dispatcher.

use std::num::NonZeroU32;
use std::sync::Arc;

use super::binding::{InputSize, Wanted};
use super::gate::{Gate, Resolution};
use super::{
    Catalog, ComplianceEnvelope, DefaultComplianceEnvelope, DefaultModelPicker, Depth,
    FailedAttempt, Floor, Grade, InputKind, ModelBinding, ModelBound, ModelKind, ModelPicker,
    ModelSlot, ModelSpec, ModelStatus, OutputSize, Prices, Seat, Situation,
};
use crate::error::{ErrorKind, JobError, RetrySignal};

const SLOT: ModelSlot = ModelSlot::new("answer");

fn spec(id: &str, provider: &str, grade: Grade) -> ModelSpec {
    let bound = ModelBound::Concurrency(NonZeroU32::MIN);
    ModelSpec::new(id, provider, bound).unwrap().grade(grade)
}

fn priced(spec: ModelSpec, input: f64) -> ModelSpec {
    spec.prices(Prices::per_million("USD", input, input).unwrap())
}

fn asks(wanted: impl Into<Floor>) -> ModelBinding {
    binding(Wanted::Floor(wanted.into()))
}

fn binding(wanted: Wanted) -> ModelBinding {
    ModelBinding::llm(
        SLOT,
        wanted,
        Depth::Quick,
        InputSize::Tokens(10),
        OutputSize::Verdict,
    )
}

/// What a resolution depends on; nothing is missing or slowed down unless set.
struct Bench {
    catalog: Catalog,
    picker: Box<dyn ModelPicker>,
    envelope: Box<dyn ComplianceEnvelope>,
    missing: Vec<&'static str>,
    slowdown: Vec<(&'static str, f64)>,
    history: Vec<FailedAttempt>,
    chance: f64,
}

impl Bench {
    fn new(models: impl IntoIterator<Item = ModelSpec>, pins: &[(Grade, &[&str])]) -> Self {
        let mut builder = Catalog::builder();
        for model in models {
            builder = builder.model(model);
        }
        for (grade, ids) in pins {
            builder = builder.pin(*grade, ids.iter().copied());
        }
        Self {
            catalog: builder.build().unwrap(),
            picker: Box::new(DefaultModelPicker::new()),
            envelope: Box::new(DefaultComplianceEnvelope::new()),
            missing: Vec::new(),
            slowdown: Vec::new(),
            history: Vec::new(),
            chance: 0.999,
        }
    }

    fn overloaded(&mut self, id: &str) {
        let attempt = self.history.len() as u32 + 1;
        self.history.push(FailedAttempt {
            attempt,
            signal: RetrySignal::overload("p", "busy").on_model(id),
            models: Vec::new(),
        });
    }

    fn resolve(&self, binding: &ModelBinding) -> Result<Resolution, JobError> {
        let missing = |spec: &ModelSpec| {
            let provider = self.missing.iter().find(|key| **key == spec.provider)?;
            Some(format!(
                "the secret {}_KEY is not set",
                provider.to_uppercase()
            ))
        };
        let slowdown = |spec: &ModelSpec| {
            let set = self.slowdown.iter().find(|(id, _)| *id == spec.id);
            set.map_or(1.0, |(_, slowdown)| *slowdown)
        };
        Gate {
            catalog: &self.catalog,
            picker: &*self.picker,
            envelope: &*self.envelope,
            missing: &missing,
            slowdown: &slowdown,
            history: &self.history,
            chance: self.chance,
            job: None,
        }
        .resolve(binding)
    }

    fn id(&self, binding: &ModelBinding) -> String {
        self.resolve(binding).unwrap().spec.id.clone()
    }

    fn refusal(&self, binding: &ModelBinding) -> String {
        self.resolve(binding).unwrap_err().to_string()
    }
}

#[test]
fn pins_go_first_then_the_cheapest_of_the_grade_then_the_next_grade_up() {
    let mut bench = Bench::new(
        [
            spec("first", "acme", Grade::Small),
            spec("second", "own", Grade::Small),
            priced(spec("dear", "x", Grade::Small), 9.0),
            priced(spec("cheap", "y", Grade::Small), 1.0),
            spec("unpriced", "z", Grade::Small),
            priced(spec("medium", "w", Grade::Medium), 0.1),
        ],
        &[(Grade::Small, &["first", "second"])],
    );
    let small = || asks(Grade::Small);
    let mut took = Vec::new();
    for gone in ["acme", "own", "y", "x", "z"] {
        took.push(bench.id(&small()));
        bench.missing.push(gone);
    }
    took.push(bench.id(&small()));
    assert_eq!(
        took,
        ["first", "second", "cheap", "dear", "unpriced", "medium"]
    );
    bench.missing.push("w");
    let refusal = bench.refusal(&small());
    for part in [
        "acme: the secret ACME_KEY is not set",
        "w: the secret W_KEY",
    ] {
        assert!(refusal.contains(part), "{part}: {refusal}");
    }
    assert!(
        refusal.contains("'answer'") && refusal.contains("Small"),
        "{refusal}"
    );
}

#[test]
fn a_floor_above_everything_served_is_lowered_to_the_strongest() {
    let mut bench = Bench::new(
        [
            spec("small", "acme", Grade::Small),
            spec("large", "acme", Grade::Large),
            spec("mega", "acme", Grade::Mega).status(ModelStatus::Disabled),
            spec("xl", "own", Grade::Xl),
        ],
        &[],
    );
    bench.missing.push("own");
    let resolution = bench.resolve(&asks(Grade::Mega)).unwrap();
    assert_eq!(&*resolution.spec.id, "large");
    assert_eq!(resolution.lowered, Some((Grade::Mega, Grade::Large)));
    let ceiling = bench.resolve(&asks(Floor::Ceiling)).unwrap();
    assert_eq!((&*ceiling.spec.id, ceiling.lowered), ("large", None));
    assert_eq!(bench.resolve(&asks(Grade::Small)).unwrap().lowered, None);
}

#[test]
fn an_envelope_has_a_floor_walk_up_and_the_ceiling_down() {
    let ladder = || {
        [
            spec("small", "acme", Grade::Small),
            spec("medium", "acme", Grade::Medium),
            spec("large", "own", Grade::Large),
            spec("mega", "acme", Grade::Mega),
        ]
    };
    let mut bench = Bench::new(ladder(), &[]);
    bench.envelope = Box::new(DefaultComplianceEnvelope::new().deny_providers(["acme"]));
    assert_eq!(bench.id(&asks(Grade::Small)), "large");
    assert_eq!(bench.id(&asks(Floor::Ceiling)), "large");
    bench.envelope = Box::new(DefaultComplianceEnvelope::new().deny_models(["mega", "large"]));
    assert_eq!(bench.id(&asks(Floor::Ceiling)), "medium");
    assert!(bench.refusal(&asks(Grade::Large)).contains("denied"));
    let pinned = binding(Wanted::Pinned(Arc::new(spec("mega", "acme", Grade::Mega))));
    assert!(bench.refusal(&pinned).contains("denied"));
}

/// Answers always the same, whatever it is asked.
#[derive(Debug)]
struct Stubborn(ModelSpec);

impl ModelPicker for Stubborn {
    fn pick(&self, _: &Seat<'_>, _: &Situation<'_>) -> Result<Arc<ModelSpec>, JobError> {
        Ok(Arc::new(self.0.clone()))
    }
}

#[test]
fn whatever_a_picker_answers_is_checked_and_a_stubborn_one_ends() {
    let small = || spec("m", "p", Grade::Small);
    for (answer, why) in [
        (small().kind(ModelKind::Embeddings), "Embeddings"),
        (small().status(ModelStatus::Deprecated), "Deprecated"),
        (spec("m", "p", Grade::Micro), "grade Micro"),
        (small().shares_data(true), "purposes of its own"),
    ] {
        let mut bench = Bench::new([answer.clone(), spec("best", "p", Grade::Mega)], &[]);
        bench.picker = Box::new(Stubborn(answer));
        let refusal = bench.refusal(&asks(Grade::Small));
        assert!(refusal.contains(why), "{why}: {refusal}");
    }
    let mut bench = Bench::new([spec("over", "p", Grade::Mega)], &[]);
    bench.picker = Box::new(Stubborn(spec("over", "p", Grade::Mega)));
    assert_eq!(
        bench.id(&asks(Grade::Small)),
        "over",
        "over-qualified is fine"
    );
}

#[test]
fn what_is_picked_or_pinned_is_the_catalogs_own_entry() {
    let own = || priced(spec("m", "p", Grade::Small), 5.0).wire_id("m-2");
    let stale = || spec("m", "elsewhere", Grade::Mega).kind(ModelKind::Embeddings);
    let picks = |catalog: ModelSpec, answer: ModelSpec| {
        let mut bench = Bench::new([catalog], &[]);
        bench.picker = Box::new(Stubborn(answer));
        bench
    };
    for seat in [
        asks(Grade::Small),
        binding(Wanted::Pinned(Arc::new(stale()))),
    ] {
        let got = picks(own(), stale()).resolve(&seat).unwrap().spec;
        assert_eq!((&*got.provider, &*got.wire_id), ("p", "m-2"));
        assert!(got.kind == ModelKind::Llm && got.prices.is_some());
        let closed = own().status(ModelStatus::Disabled);
        assert!(picks(closed, own()).refusal(&seat).contains("Disabled"));
        let shares = own().shares_data(true);
        assert!(picks(shares, own()).refusal(&seat).contains("purposes"));
        let other = spec("other", "p", Grade::Small);
        let unknown = picks(other, own()).resolve(&seat).unwrap_err();
        assert!(matches!(
            unknown.kind(),
            ErrorKind::ModelNotFound { model } if model == "m"
        ));
    }
}

#[test]
fn what_a_request_carries_is_matched_against_the_model() {
    let sees = spec("sees", "p", Grade::Medium).takes([InputKind::Images]);
    let bench = Bench::new(
        [spec("blind", "p", Grade::Small), sees],
        &[(Grade::Small, &["blind"])],
    );
    let mut shows = asks(Grade::Small);
    shows.sends(InputKind::Images);
    assert_eq!(bench.id(&shows), "sees");
    shows.sends(InputKind::Documents);
    assert!(bench.refusal(&shows).contains("takes no documents"));
    let mut pinned = binding(Wanted::Pinned(Arc::new(spec("blind", "p", Grade::Small))));
    pinned.sends(InputKind::Images);
    assert!(bench.refusal(&pinned).contains("takes no images"));
}

fn routes() -> Bench {
    let route = |id: &str| spec(id, id, Grade::Large).identity("weights");
    Bench::new(
        [
            route("a"),
            route("b"),
            route("c"),
            spec("other", "p", Grade::Large),
        ],
        &[(Grade::Large, &["a"])],
    )
}

#[test]
fn a_retry_leaves_every_route_that_was_overloaded() {
    let mut bench = routes();
    let large = || asks(Grade::Large);
    assert_eq!(bench.id(&large()), "a");
    bench.overloaded("a");
    bench.slowdown = vec![("b", 5.0)];
    assert_eq!(bench.id(&large()), "c", "the least throttled of those left");
    bench.overloaded("c");
    assert_eq!(bench.id(&large()), "b");
    bench.overloaded("b");
    assert_eq!(bench.id(&large()), "a", "with none left it stays");
    bench.missing.push("b");
    bench.history.truncate(1);
    bench.slowdown.clear();
    bench.missing.push("c");
    assert_eq!(
        bench.id(&large()),
        "a",
        "a route that cannot be called is none"
    );
}

#[derive(Debug)]
struct Stays(DefaultModelPicker);

impl ModelPicker for Stays {
    fn pick(&self, seat: &Seat<'_>, situation: &Situation<'_>) -> Result<Arc<ModelSpec>, JobError> {
        assert!(seat.job.is_none() && situation.catalog().get("a").is_some());
        self.0.pick(seat, situation)
    }

    fn may_reroute(&self, _: &Seat<'_>, _: &ModelSpec, _: &ModelSpec) -> bool {
        false
    }
}

#[test]
fn a_policy_and_a_pin_keep_their_route() {
    let mut bench = routes();
    bench.overloaded("a");
    let pin = bench.catalog.get("a").cloned().unwrap();
    assert_eq!(bench.id(&binding(Wanted::Pinned(pin))), "a");
    bench.picker = Box::new(Stays(DefaultModelPicker::new()));
    assert_eq!(bench.id(&asks(Grade::Large)), "a");
}

#[test]
fn new_work_leaves_a_throttled_route_in_the_share_of_its_slowdown() {
    let mut bench = routes();
    bench.slowdown = vec![("a", 4.0), ("b", 3.0), ("c", 4.0)];
    let moved = |bench: &mut Bench| {
        (0..1_000_u32)
            .filter(|n| {
                bench.chance = f64::from(*n) / 1_000.0;
                let id = bench.id(&asks(Grade::Large));
                assert!(
                    id == "a" || id == "b",
                    "to the strictly less throttled alone"
                );
                id == "b"
            })
            .count()
    };
    assert_eq!(moved(&mut bench), 750);
    bench.slowdown[0].1 = 2.0;
    assert_eq!(moved(&mut bench), 0, "no sibling is less throttled");
    bench.slowdown = vec![("a", 2.0), ("c", 2.0)];
    assert_eq!(moved(&mut bench), 500);
    bench.slowdown = vec![("a", 1.9)];
    assert_eq!(moved(&mut bench), 0, "it comes back");
}
