//! Where a tool may fetch from.
//!
//! URLs are read by hand, and what is out of the ordinary is refused rather than understood: parsers
//! disagree on it, and the one that fetches may read it the other way. So there is no user
//! information, no backslash, no blank or control character, no percent sign in a host, no missing
//! slash, no name that could not be registered, and no address that is not in the usual form and not
//! one of the forms known here.

#[cfg(test)]
mod tests;

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use crate::error::JobError;
use crate::guard::{ContentGuard, Gate, Guard};

/// Refuses URLs of other schemes than the allowed ones (`https` and `http` unless set), and such as
/// lead to loopback, link-local, private, unique-local or otherwise special addresses, however they
/// are written, or to names of a local network. What it cannot read it refuses.
///
/// It judges the URL, not where it leads: **a name may resolve to a private address, and a server
/// may redirect to one**; a name may also be looked up under the search domains of the machine that
/// fetches, and a network may translate addresses of its own to IPv4. The tool that fetches has to check each address that it is about to
/// connect to, with [`check_address`](Self::check_address), and each redirect with
/// [`check`](Self::check).
///
/// ```
/// use nucleo_runtime::guard::{Gate, ContentGuard, UrlGuard};
///
/// struct Fetch { url: String }
///
/// let guard = UrlGuard::new(|fetch: &Fetch| vec![fetch.url.clone()]);
/// let judge = |url: &str| guard.judge(&Fetch { url: url.into() }, &Gate::outside());
/// assert!(judge("https://example.com/a?b").is_ok());
/// assert!(judge("http://0x7f.1/").is_err());
/// assert!(judge("file:///etc/passwd").is_err());
/// ```
pub struct UrlGuard<T> {
    schemes: Vec<String>,
    urls: Urls<T>,
}

type Urls<T> = Arc<dyn Fn(&T) -> Vec<String> + Send + Sync>;

impl<T> Clone for UrlGuard<T> {
    fn clone(&self) -> Self {
        Self {
            schemes: self.schemes.clone(),
            urls: Arc::clone(&self.urls),
        }
    }
}

impl<T: 'static> UrlGuard<T> {
    /// Judges the URLs that `urls` reads off an input: all of them must pass.
    pub fn new(urls: impl Fn(&T) -> Vec<String> + Send + Sync + 'static) -> Self {
        Self {
            schemes: vec!["https".to_owned(), "http".to_owned()],
            urls: Arc::new(urls),
        }
    }

    /// Lets these schemes pass alone.
    #[must_use]
    pub fn schemes<S: AsRef<str>>(mut self, schemes: impl IntoIterator<Item = S>) -> Self {
        self.schemes = schemes
            .into_iter()
            .map(|scheme| scheme.as_ref().to_ascii_lowercase())
            .collect();
        self
    }

    /// Judges one URL.
    ///
    /// # Errors
    /// The refusal, which says why and does not repeat the URL.
    pub fn check(&self, url: &str) -> Result<(), JobError> {
        let (scheme, host) = split(url).map_err(JobError::guardrail)?;
        if !self.schemes.contains(&scheme) {
            return Err(JobError::guardrail(format!(
                "URLs must be {}",
                self.schemes.join(" or ")
            )));
        }
        check_host(&host)
    }

    /// Judges an address that a name resolved to.
    ///
    /// # Errors
    /// The refusal.
    pub fn check_address(&self, address: IpAddr) -> Result<(), JobError> {
        check_address(address)
    }
}

impl<T> fmt::Debug for UrlGuard<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UrlGuard")
            .field("schemes", &self.schemes)
            .finish_non_exhaustive()
    }
}

impl<T: 'static> Guard for UrlGuard<T> {}

impl<T: 'static> ContentGuard for UrlGuard<T> {
    type Target = T;

    fn judge(&self, target: &T, _: &Gate<'_>) -> Result<(), JobError> {
        (self.urls)(target)
            .iter()
            .try_for_each(|url| self.check(url))
    }
}

/// The scheme and the host of a URL in the ordinary form.
fn split(url: &str) -> Result<(String, String), &'static str> {
    if let Some(odd) = url.chars().find(|&c| c == '\\' || !c.is_ascii_graphic()) {
        return Err(if odd.is_ascii() {
            "a URL must have no blanks, control characters or backslashes"
        } else {
            "a URL must be written in ASCII, its host in punycode"
        });
    }
    let (scheme, rest) = url
        .split_once("://")
        .ok_or("a URL must be absolute: scheme://host/path")?;
    let named = scheme.starts_with(|c: char| c.is_ascii_alphabetic())
        && scheme
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c));
    if !named {
        return Err("a URL must begin with its scheme");
    }
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    if authority.contains('@') {
        return Err("a URL must name no user");
    }
    let (host, port) = match authority.strip_prefix('[') {
        Some(rest) => {
            let (address, port) = rest
                .split_once(']')
                .ok_or("an IPv6 address in a URL must end with ]")?;
            (format!("[{address}]"), port)
        }
        None => match authority.split_once(':') {
            Some((host, _)) => (host.to_owned(), &authority[host.len()..]),
            None => (authority.to_owned(), ""),
        },
    };
    // Digits alone: the standard library takes a sign, and whoever fetches may not.
    let port_is_a_number = port.is_empty()
        || port.strip_prefix(':').is_some_and(|number| {
            number.bytes().all(|byte| byte.is_ascii_digit()) && number.parse::<u16>().is_ok()
        });
    if !port_is_a_number {
        return Err("the port of a URL must be a number");
    }
    Ok((scheme.to_ascii_lowercase(), host.to_ascii_lowercase()))
}

/// Names that end in these are a machine's own, a local network's, or a platform's: reserved for
/// that, in use for that, or both.
const LOCAL_SUFFIXES: [&[&str]; 19] = [
    &["localhost"],
    &["localhost4"],
    &["localhost6"],
    &["localdomain"],
    &["localdomain4"],
    &["localdomain6"],
    &["local"],
    &["internal"],
    &["intranet"],
    &["private"],
    &["corp"],
    &["home"],
    &["lan"],
    &["svc"],
    &["invalid"],
    // Nobody's in public, and often a developer's own machine.
    &["test"],
    // `home.arpa`, reversed addresses, and others under which nobody serves pages.
    &["arpa"],
    // Where Google's machines ask about themselves, and where Azure's do.
    &["metadata", "goog"],
    &["metadata", "azure", "com"],
];

fn check_host(host: &str) -> Result<(), JobError> {
    if let Some(address) = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'))
    {
        let address: Ipv6Addr = address
            .parse()
            .map_err(|_| JobError::guardrail("the IPv6 address of the URL does not parse"))?;
        return check_address(address.into());
    }
    // A name may end in one dot. More are no name.
    let name = host.strip_suffix('.').unwrap_or(host);
    let labels: Vec<_> = name.split('.').collect();
    let no_name = || JobError::guardrail("the host of the URL is no host name");
    if name.len() > 253 || !labels.iter().all(|label| is_label(label)) {
        return Err(no_name());
    }
    let last = labels.last().copied().unwrap_or_default();
    if is_number(last) {
        // Whoever fetches reads it as an IPv4 address, in whatever form.
        let address = ipv4(&labels)
            .ok_or_else(|| JobError::guardrail("the IPv4 address of the URL does not parse"))?;
        return check_address(address.into());
    }
    let local = labels.len() == 1
        || LOCAL_SUFFIXES.iter().any(|suffix| {
            labels
                .iter()
                .rev()
                .zip(suffix.iter().rev())
                .filter(|(label, of_suffix)| label == of_suffix)
                .count()
                == suffix.len()
        });
    if local {
        return Err(JobError::guardrail(
            "the URL must not lead into the local network",
        ));
    }
    // All top levels there are: letters, or punycode.
    let is_top = last.len() >= 2
        && (last.starts_with("xn--") || last.bytes().all(|byte| byte.is_ascii_lowercase()));
    if is_top { Ok(()) } else { Err(no_name()) }
}

/// A part of a host name, in lower case. Underscores are no part of one by the letter, but hosts with
/// them are served.
fn is_label(label: &str) -> bool {
    let inside = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
    (1..=63).contains(&label.len())
        && label.bytes().all(|byte| inside(byte) || byte == b'-')
        && !label.starts_with('-')
        && !label.ends_with('-')
}

/// Whether a host that ends in this is read as an IPv4 address.
fn is_number(label: &str) -> bool {
    label.bytes().all(|byte| byte.is_ascii_digit())
        || label
            .strip_prefix("0x")
            .is_some_and(|hex| hex.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

/// An IPv4 address of one to four parts, each decimal, octal or hexadecimal; the last fills what is
/// left.
fn ipv4(parts: &[&str]) -> Option<Ipv4Addr> {
    let numbers: Vec<u64> = parts
        .iter()
        .map(|part| match part.strip_prefix("0x") {
            Some("") => Some(0),
            Some(hex) => u64::from_str_radix(hex, 16).ok(),
            None if part.len() > 1 && part.starts_with('0') => u64::from_str_radix(part, 8).ok(),
            None => part.parse().ok(),
        })
        .collect::<Option<_>>()?;
    let (last, first) = numbers.split_last()?;
    if first.len() > 3 || first.iter().any(|&number| number > 255) {
        return None;
    }
    let mut address = 0_u64;
    for number in first {
        address = address << 8 | number;
    }
    let left = 8 * (4 - first.len());
    if *last >= 1 << left {
        return None;
    }
    u32::try_from(address << left | last).ok().map(Into::into)
}

fn check_address(address: IpAddr) -> Result<(), JobError> {
    let public = match address {
        IpAddr::V4(address) => is_public_v4(address),
        IpAddr::V6(address) => is_public_v6(address),
    };
    if public {
        return Ok(());
    }
    Err(JobError::guardrail(
        "the URL must not lead to a loopback, link-local, private or otherwise reserved address",
    ))
}

/// What IANA's registry of special addresses does not list, so the world may reach it.
fn is_public_v4(address: Ipv4Addr) -> bool {
    let [a, b, c, d] = address.octets();
    !(a == 0
        || address.is_loopback()
        || address.is_private()
        || address.is_link_local()
        // Shared by a carrier's customers, and kept for protocols, relays and benchmarks.
        || a == 100 && (64..128).contains(&b)
        || (a, b, c) == (192, 0, 0)
        || (a, b, c) == (192, 88, 99)
        || a == 198 && (b == 18 || b == 19)
        // For documentation.
        || (a, b, c) == (192, 0, 2)
        || (a, b, c) == (198, 51, 100)
        || (a, b, c) == (203, 0, 113)
        // Where Azure's machines reach their host: public by its number alone.
        || (a, b, c, d) == (168, 63, 129, 16)
        // Multicast, reserved and broadcast.
        || a >= 224)
}

fn is_public_v6(address: Ipv6Addr) -> bool {
    let [s0, s1, s2, s3, s4, s5, s6, s7] = address.segments();
    let v4 = |high: u16, low: u16| Ipv4Addr::from(u32::from(high) << 16 | u32::from(low));
    match (s0, s1, s2, s3, s4, s5) {
        // Mapped and translated addresses are the IPv4 ones in them. ::1 and :: are among these.
        (0, 0, 0, 0, 0, 0 | 0xffff) | (0, 0, 0, 0, 0xffff, 0) | (0x64, 0xff9b, 0, 0, 0, 0) => {
            is_public_v4(v4(s6, s7))
        }
        // ISATAP, under whatever prefix: carried in IPv4 to the address at the end.
        (_, _, _, _, 0 | 0x200, 0x5efe) if !is_public_v4(v4(s6, s7)) => false,
        // 6to4: carried in IPv4.
        (0x2002, high, low, ..) => is_public_v4(v4(high, low)),
        // Kept for protocols (Teredo, benchmarks, identifiers and more), and for documentation.
        (0x2001, 0..=0x1ff | 0xdb8, ..) => false,
        (0x3fff, 0..=0xfff, ..) => false,
        // What is given out to the world is all in this block.
        _ => s0 & 0xe000 == 0x2000,
    }
}
