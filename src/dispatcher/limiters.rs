//! The limits that a dispatcher has one of each (`FAC`).
//!
//! # Invariants
//!
//! 1. An id or a name answers the same instance until [`LimiterRegistry::clear`].
//! 2. Nothing foreign runs under the registry's lock: a limiter is built before it is taken, and
//!    of two built at once the first that is entered stays.
//! 3. What bounds a model is what its entry says: figures that a provider reports make no bucket for a
//!    model that is bounded by calls at once, and one that is there for its id gives way.

use std::any::{Any, TypeId, type_name};
use std::collections::HashMap;
use std::fmt;
use std::num::NonZeroU32;
use std::sync::Arc;

use crate::admission::{
    Admission, CountingGate, ModelGate, RateLimiter, TokenBucket, TokenBudget, refuse_reentry,
};
use crate::clock::Clock;
use crate::error::JobError;
use crate::job::identity::simple_name;
use crate::models::{Catalog, ModelBound, ModelSpec};
use crate::sync::Mutex;
use crate::unwind::{contain_result, discard};

/// What bounds the use of a model.
#[derive(Clone)]
pub(super) enum ModelAccount {
    Bucket(Arc<TokenBucket>),
    Gate(Arc<ModelGate>),
}

impl ModelAccount {
    fn bounds_as(&self, bound: ModelBound) -> bool {
        match bound {
            ModelBound::Quota { .. } => matches!(self, Self::Bucket(_)),
            ModelBound::Concurrency(_) => matches!(self, Self::Gate(_)),
        }
    }
}

/// The limits of one dispatcher: a bucket or a gate for each model, and one instance of each limit
/// that the application names. Another dispatcher of the process has limits of its own.
///
/// See [`JobDispatcher::limiters`](crate::JobDispatcher::limiters).
pub struct LimiterRegistry {
    clock: Arc<dyn Clock>,
    admission: Admission,
    catalog: Catalog,
    entries: Mutex<Entries>,
}

#[derive(Default)]
struct Entries {
    models: HashMap<String, ModelAccount>,
    named: HashMap<(TypeId, String), Arc<dyn Any + Send + Sync>>,
}

impl LimiterRegistry {
    pub(super) fn new(clock: Arc<dyn Clock>, admission: Admission, catalog: Catalog) -> Self {
        Self {
            clock,
            admission,
            catalog,
            entries: Mutex::default(),
        }
    }

    /// The account of a model, made from its entry at the first call for its id.
    pub(super) fn account_for(&self, spec: &ModelSpec) -> Result<ModelAccount, JobError> {
        if let Some(account) = self.model(&spec.id).filter(|it| it.bounds_as(spec.bound)) {
            return Ok(account);
        }
        let account = match spec.bound {
            ModelBound::Quota {
                tokens_per_minute,
                requests_per_minute,
            } => {
                let tokens = tokens_per_minute.get();
                // TB-7: where the entry does not say.
                let requests =
                    requests_per_minute.map_or_else(|| (tokens / 1_000).max(1), NonZeroU32::get);
                ModelAccount::Bucket(self.bucket(&spec.id, tokens, requests)?)
            }
            ModelBound::Concurrency(at_once) => {
                ModelAccount::Gate(Arc::new(CountingGate::model(&spec.id, at_once.get())?))
            }
        };
        let mut entries = self.entries.lock();
        match entries.models.get(&spec.id) {
            Some(first) if first.bounds_as(spec.bound) => Ok(first.clone()),
            _ => {
                entries.models.insert(spec.id.clone(), account.clone());
                Ok(account)
            }
        }
    }

    fn model(&self, id: &str) -> Option<ModelAccount> {
        self.entries.lock().models.get(id).cloned()
    }

    fn bucket(&self, id: &str, tokens: u32, requests: u32) -> Result<Arc<TokenBucket>, JobError> {
        let budget = TokenBudget::new(tokens, requests);
        Ok(Arc::new(TokenBucket::new(id, budget, self.clock.now())?))
    }

    /// The bucket of a model, by its entry's id: made at the first need of the model or the first
    /// [`update_limits`](Self::update_limits). `None` before, and for a model that is bounded by
    /// calls at once.
    #[must_use]
    pub fn bucket_of(&self, model: &str) -> Option<Arc<TokenBucket>> {
        match self.model(model)? {
            ModelAccount::Bucket(bucket) => Some(bucket),
            ModelAccount::Gate(_) => None,
        }
    }

    /// The gate of a model that is bounded by calls at once, by its entry's id; `None` before the
    /// first need of it.
    #[must_use]
    pub fn gate_of(&self, model: &str) -> Option<Arc<ModelGate>> {
        match self.model(model)? {
            ModelAccount::Gate(gate) => Some(gate),
            ModelAccount::Bucket(_) => None,
        }
    }

    /// Takes over the limits that a provider reports for a model, in place: the throttle stays, and
    /// who holds the bucket sees them. For a model without a bucket yet one is made, unless the catalog
    /// says that it is bounded by calls at once: of such a model all figures are ignored. So is a pair
    /// with a figure that is not positive: it is what a provider sends when it does not say.
    pub fn update_limits(&self, model: &str, requests_per_minute: i64, tokens_per_minute: i64) {
        let figure = |figure: i64| (figure > 0).then(|| u32::try_from(figure).unwrap_or(u32::MAX));
        let (Some(requests), Some(tokens)) =
            (figure(requests_per_minute), figure(tokens_per_minute))
        else {
            return;
        };
        let account = match self.model(model) {
            Some(account) => account,
            None if self.is_bounded_by_calls(model) => return,
            // A blank id names no model, and is nobody's limit.
            None => match self.bucket(model, tokens, requests) {
                Ok(bucket) => {
                    let mut entries = self.entries.lock();
                    let entry = entries.models.entry(model.to_owned());
                    entry.or_insert(ModelAccount::Bucket(bucket)).clone()
                }
                Err(_) => return,
            },
        };
        if let ModelAccount::Bucket(bucket) = account {
            // Nothing new to one that was made of these figures.
            bucket.set_config(TokenBudget::new(tokens, requests), self.clock.now());
        }
    }

    fn is_bounded_by_calls(&self, model: &str) -> bool {
        let entry = self.catalog.get(model);
        entry.is_some_and(|spec| matches!(spec.bound, ModelBound::Concurrency(_)))
    }

    /// The one limiter of type `L` named `name`, built at the first call.
    ///
    /// # Errors
    /// `Uncorrectable` naming the type, with the failure as its source, when `build` fails.
    pub fn limiter<L: RateLimiter>(
        &self,
        name: &str,
        build: impl FnOnce() -> Result<L, JobError>,
    ) -> Result<Arc<L>, JobError> {
        let key = (TypeId::of::<L>(), name.to_owned());
        if let Some(known) = self.named(&key) {
            return Ok(known);
        }
        let built = contain_result("limiter", build).map_err(|error| {
            JobError::uncorrectable(format!(
                "the limiter {} could not be built: {error}",
                simple_name(type_name::<L>())
            ))
            .with_source(error)
        })?;
        let built = Arc::new(built);
        let entered = {
            let mut entries = self.entries.lock();
            let entry: Arc<dyn Any + Send + Sync> = Arc::<L>::clone(&built);
            Arc::clone(entries.named.entry(key).or_insert(entry))
        };
        match entered.downcast::<L>() {
            Ok(first) => {
                discard(built);
                Ok(first)
            }
            // The key holds the type, so what is under it is of this type.
            Err(_) => Ok(built),
        }
    }

    /// The one limiter of type `L`, built at the first call.
    ///
    /// # Errors
    /// As for [`limiter`](Self::limiter).
    pub fn limiter_of<L: RateLimiter>(
        &self,
        build: impl FnOnce() -> Result<L, JobError>,
    ) -> Result<Arc<L>, JobError> {
        self.limiter(simple_name(type_name::<L>()), build)
    }

    fn named<L: RateLimiter>(&self, key: &(TypeId, String)) -> Option<Arc<L>> {
        let known = Arc::clone(self.entries.lock().named.get(key)?);
        known.downcast().ok()
    }

    /// Forgets every limit; the next need of one makes a new one, from its entry or anew. Jobs keep
    /// what they hold of the old ones. A job that still waits for an old limit makes admission
    /// refuse a new one of its name until it has left. Does nothing when it is called from inside a
    /// limit's answer.
    pub fn clear(&self) {
        if refuse_reentry("clear").is_err() {
            return;
        }
        let entries = std::mem::take(&mut *self.entries.lock());
        self.admission.forget_idle_accounts();
        for limiter in entries.named.into_values() {
            discard(limiter);
        }
    }
}

impl fmt::Debug for LimiterRegistry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let entries = self.entries.lock();
        f.debug_struct("LimiterRegistry")
            .field("models", &entries.models.keys())
            .field("named", &entries.named.len())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::JobDispatcher;
    use crate::clock::ManualClock;
    use crate::error::ErrorKind;
    use crate::testing;

    fn dispatcher() -> JobDispatcher {
        let clock = Arc::new(ManualClock::new());
        JobDispatcher::builder().clock(clock).build().unwrap()
    }

    fn quota(id: &str, tokens: u32, requests: u32) -> ModelSpec {
        let bound = ModelBound::Quota {
            tokens_per_minute: NonZeroU32::new(tokens).unwrap(),
            requests_per_minute: NonZeroU32::new(requests),
        };
        ModelSpec::new(id, "provider", bound).unwrap()
    }

    fn bucket(limiters: &LimiterRegistry, spec: &ModelSpec) -> Arc<TokenBucket> {
        match limiters.account_for(spec).unwrap() {
            ModelAccount::Bucket(bucket) => bucket,
            ModelAccount::Gate(_) => panic!("a quota is a bucket"),
        }
    }

    fn gate() -> Result<CountingGate, JobError> {
        CountingGate::new("printer", 2)
    }

    // case FAC-01
    #[test]
    fn a_name_answers_one_instance_until_the_registry_is_cleared() {
        let dispatcher = dispatcher();
        let limiters = dispatcher.limiters();
        let first = limiters.limiter("printer", gate).unwrap();
        let again = limiters.limiter::<CountingGate>("printer", || panic!("built before"));
        assert!(Arc::ptr_eq(&first, &again.unwrap()));
        let typed = limiters.limiter_of(gate).unwrap();
        assert!(!Arc::ptr_eq(&first, &typed), "another name");
        limiters.clear();
        assert!(!Arc::ptr_eq(
            &first,
            &limiters.limiter("printer", gate).unwrap()
        ));
    }

    // case FAC-01
    #[test]
    fn a_limiter_that_cannot_be_built_is_refused_with_its_reason() {
        let dispatcher = dispatcher();
        let refused = dispatcher
            .limiters()
            .limiter_of(|| CountingGate::new("printer", 0));
        let error = refused.unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Uncorrectable { .. }));
        let text = error.to_string();
        assert!(
            text.contains("CountingGate") && text.contains("at least one permit"),
            "{text}"
        );
        assert!(std::error::Error::source(&error).is_some());
        let panicked = dispatcher
            .limiters()
            .limiter_of::<CountingGate>(|| panic!("no printer"));
        assert!(panicked.unwrap_err().to_string().contains("no printer"));
    }

    // case FAC-02
    #[test]
    fn a_bucket_is_made_from_the_entry_of_its_model() {
        let dispatcher = dispatcher();
        let limiters = dispatcher.limiters();
        assert!(limiters.bucket_of("m").is_none());
        let made = bucket(limiters, &quota("m", 90_000, 7));
        assert_eq!(made.budget(), TokenBudget::new(90_000, 7));
        assert_eq!(made.name(), "m");
        assert!(Arc::ptr_eq(&made, &limiters.bucket_of("m").unwrap()));
        let unsaid = bucket(limiters, &quota("n", 120_000, 0));
        assert_eq!(unsaid.budget(), TokenBudget::new(120_000, 120));
        assert_eq!(
            bucket(limiters, &quota("o", 90, 0))
                .budget()
                .requests_per_minute,
            1
        );

        let bound = ModelBound::Concurrency(NonZeroU32::new(3).unwrap());
        let local = ModelSpec::new("local", "own", bound).unwrap();
        assert!(matches!(
            limiters.account_for(&local),
            Ok(ModelAccount::Gate(_))
        ));
        assert_eq!(limiters.gate_of("local").unwrap().capacity(), 3);
        limiters.update_limits("local", 10, 1_000);
        assert!(limiters.bucket_of("local").is_none());
    }

    // case FAC-04
    #[test]
    fn reported_limits_apply_in_place_and_make_a_bucket_where_there_is_none() {
        let dispatcher = dispatcher();
        let limiters = dispatcher.limiters();
        let made = bucket(limiters, &quota("m", 90_000, 7));
        made.record_429(dispatcher.clock().now());
        limiters.update_limits("m", 50, 5_000);
        let now = limiters.bucket_of("m").unwrap();
        assert!(Arc::ptr_eq(&made, &now));
        assert_eq!(now.budget(), TokenBudget::new(5_000, 50));
        assert_eq!(now.throttle(), 0.5);
        limiters.update_limits("unknown", 10, 2_000);
        let made = limiters.bucket_of("unknown").unwrap();
        assert_eq!(made.budget(), TokenBudget::new(2_000, 10));
    }

    fn calls(id: &str, at_once: u32) -> ModelSpec {
        let bound = ModelBound::Concurrency(NonZeroU32::new(at_once).unwrap());
        ModelSpec::new(id, "own", bound).unwrap()
    }

    #[test]
    fn figures_that_a_provider_reports_take_no_model_its_bound_by_calls() {
        let clock = Arc::new(ManualClock::new());
        let client = Arc::new(crate::llm::ScriptedClient::from_fn(|_| "42"));
        let builder = JobDispatcher::builder().clock(clock);
        let dispatcher = builder.model(calls("local", 1), client).build().unwrap();
        let limiters = dispatcher.limiters();
        let catalogued = |limiters: &LimiterRegistry| limiters.account_for(&calls("local", 1));

        limiters.update_limits("local", 1_000, 1_000_000);
        assert!(limiters.bucket_of("local").is_none());
        assert!(matches!(catalogued(limiters), Ok(ModelAccount::Gate(_))));
        assert_eq!(limiters.gate_of("local").unwrap().capacity(), 1);
        // A call that was out at the clear reports what its provider said.
        limiters.clear();
        limiters.update_limits("local", 1_000, 1_000_000);
        assert!(limiters.bucket_of("local").is_none());

        // One that the catalog does not know had a bucket made for it before its entry was seen.
        limiters.update_limits("late", 1_000, 1_000_000);
        assert!(limiters.bucket_of("late").is_some());
        let late = limiters.account_for(&calls("late", 2));
        assert!(matches!(late, Ok(ModelAccount::Gate(_))));
        assert_eq!(limiters.gate_of("late").unwrap().capacity(), 2);
        limiters.update_limits("late", 1_000, 1_000_000);
        assert_eq!(limiters.gate_of("late").unwrap().capacity(), 2);
    }

    // case FAC-05
    // case FAC-06
    #[test]
    fn a_pair_with_a_figure_that_is_not_positive_is_ignored() {
        let dispatcher = dispatcher();
        let limiters = dispatcher.limiters();
        limiters.update_limits("m", 0, 9_000);
        assert!(limiters.bucket_of("m").is_none());
        let made = bucket(limiters, &quota("m", 1_000, 10));
        assert_eq!(made.budget(), TokenBudget::new(1_000, 10));
        limiters.update_limits("m", 10, 0);
        limiters.update_limits("m", -1, 9_000);
        assert_eq!(made.budget(), TokenBudget::new(1_000, 10));
    }

    // case FAC-07
    #[test]
    fn two_dispatchers_share_nothing_and_a_cleared_name_is_served_anew() {
        let (one, other) = (dispatcher(), dispatcher());
        let spec = quota("m", 1_000, 10);
        let first = bucket(one.limiters(), &spec);
        assert!(!Arc::ptr_eq(&first, &bucket(other.limiters(), &spec)));

        let context = testing::context(one.clock(), one.bus(), "user", None).unwrap();
        let admit = |bucket: &Arc<TokenBucket>| {
            let mut demand = crate::admission::Demand::new();
            demand.add(bucket, 10);
            one.admission().admit(demand, &context)
        };
        let held = admit(&first).unwrap();
        one.limiters().clear();
        let second = bucket(one.limiters(), &spec);
        assert!(!Arc::ptr_eq(&first, &second));
        drop(admit(&second).unwrap());
        assert!(admit(&first).is_err(), "the name is the new one's now");
        drop(held);
    }
}
