//! What workflows spend, and the caps on it (`COST-2`, `COST-3`).
//!
//! # Invariants
//!
//! 1. Under a cap, what was spent and what is committed never pass it together: an attempt is judged
//!    and committed in one step.
//! 2. A job's calls are counted once, whoever tells of its end first: the dispatcher, before the
//!    terminal event, or that event.
//! 3. Currencies are kept apart.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::error::{ErrorKind, JobError};
use crate::events::{Event, ModelCall, Observer};
use crate::job::JobSnapshot;
use crate::models::{Cost, Currency, PricedAttempt, SpendGate, Usage};
use crate::sync::Mutex;

/// Keeps the books: what each workflow spent, by model and call, what is committed by jobs that have
/// not ended, and the caps.
///
/// As a subscriber it reports what was spent. As a spend gate it also refuses what would pass a cap;
/// then a caller back from `get` finds the books closed.
///
/// ```
/// use nucleo_runtime::JobDispatcher;
/// use nucleo_runtime::observe::CostLedger;
///
/// let ledger = CostLedger::new();
/// let dispatcher = JobDispatcher::builder().spend_gate(ledger.clone()).build()?;
/// # let workflow = nucleo_runtime::Workflow::new("alice", "report")?;
/// ledger.cap(workflow.id(), "0.01 USD".parse()?);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Default)]
pub struct CostLedger {
    books: Mutex<HashMap<Arc<str>, Book>>,
}

type Sums = BTreeMap<Currency, u128>;

#[derive(Default)]
struct Book {
    caps: Sums,
    spent: Sums,
    committed: Sums,
    /// By job, of those that have not ended.
    by_job: HashMap<Arc<str>, Sums>,
    /// Jobs whose calls are counted.
    closed: HashSet<Arc<str>>,
    models: BTreeMap<Arc<str>, ModelSpend>,
    calls: Vec<CallSpend>,
    unpriced: usize,
}

/// What a workflow spent.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct WorkflowSpend {
    /// What ended jobs cost, by currency.
    pub spent: Vec<Cost>,
    /// What jobs that have not ended may cost, by currency.
    pub committed: Vec<Cost>,
    /// The caps, by currency; empty when there is none.
    pub caps: Vec<Cost>,
    /// Every call of the ended jobs, failed ones too.
    pub calls: Vec<CallSpend>,
    /// What each model's share is, by its id.
    pub models: Vec<ModelSpend>,
    /// How many calls used, or may have used, tokens that no price is known for.
    pub unpriced: usize,
}

/// One call.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct CallSpend {
    /// The job that made it.
    pub job: Arc<str>,
    /// What the job is called.
    pub name: String,
    /// The entry of the catalog that was called.
    pub model: Arc<str>,
    /// The model that answered, in the provider's words, where it said.
    pub served: Option<Arc<str>>,
    /// Whether it succeeded.
    pub successful: bool,
    /// Its tokens, where the provider said.
    pub usage: Option<Usage>,
    /// What it cost; `None` when that is not known.
    pub cost: Option<Cost>,
    /// Whether the cost is what was reserved, because the tokens are not known
    /// ([`ModelCall::estimated`]).
    pub estimated: bool,
    /// How long it took.
    pub latency: Duration,
}

/// A model's share.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ModelSpend {
    /// The entry of the catalog.
    pub model: Arc<str>,
    /// How many calls.
    pub calls: usize,
    /// Their tokens.
    pub usage: Usage,
    /// What they cost, by currency; empty when no price is known.
    pub cost: Vec<Cost>,
    /// How long they took together.
    pub latency: Duration,
}

impl CostLedger {
    /// Books without an entry.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Caps what the workflow may spend in a currency, in place of an earlier cap in it. Once there is
    /// a cap, models without a price and of other currencies are refused.
    pub fn cap(&self, workflow: &str, cap: Cost) {
        self.change(workflow, |book| {
            book.caps.insert(cap.currency(), cap.billionths());
        });
    }

    /// Takes every cap off the workflow.
    pub fn uncap(&self, workflow: &str) {
        self.change(workflow, |book| book.caps.clear());
    }

    /// Forgets what the workflow spent, and its caps. For one that has ended: its calls are kept
    /// until then.
    pub fn forget(&self, workflow: &str) {
        let forgotten = self.books.lock().remove(workflow);
        drop(forgotten);
    }

    /// What the workflow's ended jobs cost in a currency.
    #[must_use]
    pub fn spent(&self, workflow: &str, currency: Currency) -> Cost {
        self.sum(workflow, currency, |book| &book.spent)
    }

    /// What the workflow's jobs that have been let through and have not ended may cost in a currency.
    #[must_use]
    pub fn committed(&self, workflow: &str, currency: Currency) -> Cost {
        self.sum(workflow, currency, |book| &book.committed)
    }

    fn sum(&self, workflow: &str, currency: Currency, of: impl Fn(&Book) -> &Sums) -> Cost {
        let books = self.books.lock();
        let sum = books.get(workflow).map_or(0, |book| at(of(book), currency));
        Cost::from_billionths(sum, currency)
    }

    /// Everything about a workflow; `None` for one that nothing is known of.
    #[must_use]
    pub fn report(&self, workflow: &str) -> Option<WorkflowSpend> {
        self.books.lock().get(workflow).map(|book| WorkflowSpend {
            spent: costs(&book.spent),
            committed: costs(&book.committed),
            caps: costs(&book.caps),
            calls: book.calls.clone(),
            models: book.models.values().cloned().collect(),
            unpriced: book.unpriced,
        })
    }

    fn change<T>(&self, workflow: &str, change: impl FnOnce(&mut Book) -> T) -> T {
        let mut books = self.books.lock();
        match books.get_mut(workflow) {
            Some(book) => change(book),
            None => change(books.entry(workflow.into()).or_default()),
        }
    }

    /// A job has ended: what it committed is free, and its calls are counted.
    fn close(&self, job: &JobSnapshot, calls: &[ModelCall]) {
        let mut books = self.books.lock();
        let book = match books.get_mut(job.workflow_id()) {
            Some(book) => book,
            None if calls.is_empty() => return,
            None => books.entry(job.workflow_id().into()).or_default(),
        };
        book.release(job.job_id());
        if !calls.is_empty() && book.closed.insert(job.job_id().into()) {
            for call in calls {
                book.count(job, call);
            }
        }
    }
}

impl Book {
    fn release(&mut self, job: &str) {
        let freed = self.by_job.remove(job).unwrap_or_default();
        for (currency, amount) in freed {
            if let Some(sum) = self.committed.get_mut(&currency) {
                *sum = sum.saturating_sub(amount);
            }
        }
    }

    fn commit(&mut self, job: &str, amounts: Sums) {
        for (currency, amount) in &amounts {
            add(&mut self.committed, *currency, *amount);
        }
        self.by_job.insert(job.into(), amounts);
    }

    fn count(&mut self, job: &JobSnapshot, call: &ModelCall) {
        let latency = call
            .ended_at
            .duration_since(call.started_at)
            .unwrap_or_default();
        if let Some(cost) = call.cost {
            add(&mut self.spent, cost.currency(), cost.billionths());
        } else if call.usage.is_some() || call.estimated {
            self.unpriced += 1;
        }
        let share = self
            .models
            .entry(Arc::clone(&call.model))
            .or_insert_with(|| ModelSpend {
                model: Arc::clone(&call.model),
                calls: 0,
                usage: Usage::default(),
                cost: Vec::new(),
                latency: Duration::ZERO,
            });
        share.calls += 1;
        share.latency = share.latency.saturating_add(latency);
        share.usage = plus(share.usage, call.usage.unwrap_or_default());
        if let Some(cost) = call.cost {
            let known = share
                .cost
                .iter_mut()
                .find(|known| known.currency() == cost.currency());
            match known {
                Some(known) => *known = known.checked_add(cost).unwrap_or(*known),
                None => share.cost.push(cost),
            }
        }
        self.calls.push(CallSpend {
            job: job.job_id().into(),
            name: job.display_name().to_owned(),
            model: Arc::clone(&call.model),
            served: call.served.clone(),
            successful: call.successful,
            usage: call.usage,
            cost: call.cost,
            estimated: call.estimated,
            latency,
        });
    }

    /// What the attempt may cost, by currency, with what the job's earlier attempts did.
    fn price(&self, attempt: &PricedAttempt<'_>) -> Result<Priced, JobError> {
        let mut priced = Priced::default();
        for model in attempt.models {
            let Some(cost) = model.cost else {
                if self.caps.is_empty() {
                    continue;
                }
                return Err(refused(format!(
                    "the workflow {} is under a cap, and the catalog does not price {}: give the \
                     model prices, or take the cap off",
                    attempt.job.workflow_id(),
                    model.spec.id
                )));
            };
            let currency = cost.currency();
            if !self.caps.is_empty() && !self.caps.contains_key(&currency) {
                return Err(refused(format!(
                    "the workflow {} is under a cap, and {} is priced in {currency}: add a cap in \
                     {currency}",
                    attempt.job.workflow_id(),
                    model.spec.id
                )));
            }
            add(&mut priced.reserved, currency, cost.billionths());
        }
        for cost in attempt.calls.iter().filter_map(|call| call.cost) {
            add(&mut priced.earlier, cost.currency(), cost.billionths());
        }
        Ok(priced)
    }

    /// COST-3, under one lock with the commitment.
    fn judge(&mut self, attempt: &PricedAttempt<'_>) -> Result<(), JobError> {
        let priced = self.price(attempt)?;
        let job = attempt.job.job_id();
        let own = self.by_job.get(job);
        for (currency, reserved) in &priced.reserved {
            let Some(cap) = self.caps.get(currency) else {
                continue;
            };
            let spent = at(&self.spent, *currency);
            // Of its own it keeps what its earlier attempts have used.
            let committed = at(&self.committed, *currency)
                .saturating_sub(own.map_or(0, |own| at(own, *currency)))
                .saturating_add(at(&priced.earlier, *currency));
            let all = spent.saturating_add(committed).saturating_add(*reserved);
            if all > *cap {
                let money = |amount| Cost::from_billionths(amount, *currency);
                return Err(refused(format!(
                    "the attempt may cost {}, and the workflow {} has spent {} and committed {} of \
                     its cap of {}: nothing that runs was stopped; raise the cap, or ask for less",
                    money(*reserved),
                    attempt.job.workflow_id(),
                    money(spent),
                    money(committed),
                    money(*cap)
                )));
            }
        }
        self.release(job);
        let mut amounts = priced.reserved;
        for (currency, amount) in priced.earlier {
            add(&mut amounts, currency, amount);
        }
        self.commit(job, amounts);
        Ok(())
    }
}

#[derive(Default)]
struct Priced {
    reserved: Sums,
    /// What the calls of the job's earlier attempts cost.
    earlier: Sums,
}

fn refused(message: String) -> JobError {
    JobError::from_kind(ErrorKind::SpendCapExceeded { message })
}

fn at(sums: &Sums, currency: Currency) -> u128 {
    sums.get(&currency).copied().unwrap_or(0)
}

fn add(sums: &mut Sums, currency: Currency, amount: u128) {
    let sum = sums.entry(currency).or_default();
    *sum = sum.saturating_add(amount);
}

fn costs(sums: &Sums) -> Vec<Cost> {
    sums.iter()
        .map(|(currency, amount)| Cost::from_billionths(*amount, *currency))
        .collect()
}

fn plus(sum: Usage, other: Usage) -> Usage {
    Usage::new(
        sum.input_tokens.saturating_add(other.input_tokens),
        sum.output_tokens.saturating_add(other.output_tokens),
    )
    .cached(
        sum.cache_write_tokens
            .saturating_add(other.cache_write_tokens),
        sum.cache_read_tokens
            .saturating_add(other.cache_read_tokens),
    )
}

impl Observer for CostLedger {
    fn observe(&self, event: &Arc<Event>) {
        if let Some(job) = event.snapshot().filter(|_| event.is_terminal()) {
            self.close(job, event.model_calls());
        }
    }

    fn accepts(&self, event: &Event) -> bool {
        event.is_terminal()
    }
}

impl SpendGate for CostLedger {
    fn judge(&self, attempt: &PricedAttempt<'_>) -> Result<(), JobError> {
        self.change(attempt.job.workflow_id(), |book| book.judge(attempt))
    }

    fn settle(&self, job: &JobSnapshot, calls: &[ModelCall]) {
        self.close(job, calls);
    }
}

impl fmt::Debug for CostLedger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CostLedger")
            .field("workflows", &self.books.lock().len())
            .finish()
    }
}
