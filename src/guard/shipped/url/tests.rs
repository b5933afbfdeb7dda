use super::*;

fn check(url: &str) -> Result<(), JobError> {
    UrlGuard::new(|url: &String| vec![url.clone()]).check(url)
}

#[test]
fn ordinary_urls_pass() {
    for url in [
        "https://example.com",
        "http://example.com:8080/a/b?c=d#e",
        "HTTPS://Example.COM./",
        "https://sub.example.co.uk/@user/x",
        "https://example.com/?next=http://127.0.0.1/",
        "https://xn--bcher-kva.example/",
        "https://8.8.8.8/",
        "https://0x08.010.8.8/",
        "https://134744072/",
        "https://[2606:4700:4700::1111]:443/",
        "https://[::ffff:8.8.8.8]/",
        "https://3com.example/",
        "https://172.32.0.1/",
        "https://100.128.0.1/",
        "https://example.com:00443/",
        "https://my_bucket.store.example.com/",
        "https://a-b.example.com/",
        "https://a--b.example.com/",
        "https://localhost.example.com/",
        "https://metadata.example.com/",
        "https://goog.example.com/",
        "https://local.example/",
        "https://arpa.example/",
        "https://internal-docs.example.com/",
        "https://example.xn--p1ai/",
        "https://192.0.1.1/",
        "https://192.0.3.1/",
        "https://192.88.98.1/",
        "https://198.17.0.1/",
        "https://198.20.0.1/",
        "https://168.63.129.17/",
        "https://100.63.255.255/",
        "https://223.255.255.254/",
        "https://[2001:200::1]/",
        "https://[2001:db9::1]/",
        "https://[3ffe:ffff::1]/",
        "https://[2a00:1450::1:5efe:10.0.0.1]/",
        "https://[2a00:1450::0:5efe:8.8.8.8]/",
        "https://[2002:808:808::1]/",
        "https://[64:ff9b::8.8.8.8]/",
    ] {
        assert!(check(url).is_ok(), "{url}: {:?}", check(url));
    }
}

#[test]
fn evasions_are_refused() {
    for url in [
        // Schemes and forms.
        "",
        "example.com",
        "//example.com/",
        "file:///etc/passwd",
        "ftp://example.com/",
        "javascript://example.com/%0aalert(1)",
        "http:/127.0.0.1/",
        "http:127.0.0.1",
        "http:///127.0.0.1/",
        "http:\\\\127.0.0.1\\",
        "http://example.com\\@127.0.0.1/",
        " http://example.com/",
        "http://exa\tmple.com/",
        "http://example.com/\n",
        "http://",
        // Loopback, private and link-local, as they are.
        "http://127.0.0.1/",
        "http://127.255.0.9:80/",
        "http://10.1.2.3/",
        "http://172.16.0.1/",
        "http://172.31.255.255/",
        "http://192.168.0.1/",
        "http://169.254.169.254/latest/meta-data/",
        "http://0.0.0.0/",
        "http://100.64.0.1/",
        "http://198.18.0.1/",
        "http://224.0.0.1/",
        "http://255.255.255.255/",
        // Decimal, octal, hexadecimal, short, and mixtures.
        "http://2130706433/",
        "http://017700000001/",
        "http://0x7f000001/",
        "http://0X7F000001/",
        "http://0x7f.1/",
        "http://127.1/",
        "http://127.0.1/",
        "http://0177.0.0.1/",
        "http://0x7f.0x0.0x0.0x1/",
        "http://10.66051/",
        "http://0/",
        "http://0x/",
        "http://2852039166/",
        "http://127.0.0.1./",
        // What parses in no form.
        "http://256.0.0.1/",
        "http://1.2.3.4.5/",
        "http://4294967296/",
        "http://09.1.1.1/",
        "http://1.2.3.0xfff/",
        "http://example.1/",
        "http://127.0.0.1../",
        "http://127..0.0.1/",
        // IPv6.
        "http://[::1]/",
        "http://[::]/",
        "http://[0:0:0:0:0:0:0:1]/",
        "http://[::ffff:127.0.0.1]/",
        "http://[::ffff:7f00:1]/",
        "http://[::127.0.0.1]/",
        "http://[::ffff:0:127.0.0.1]/",
        "http://[64:ff9b::10.0.0.1]/",
        "http://[2002:7f00:1::]/",
        "http://[2001:0:4136:e378::]/",
        "http://[fe80::1]/",
        "http://[fe80::1%25eth0]/",
        "http://[fc00::1]/",
        "http://[fd12:3456::1]/",
        "http://[ff02::1]/",
        "http://[::1/",
        "http://[::1]x/",
        // Users, ports and names.
        "http://user@example.com/",
        "http://example.com@127.0.0.1/",
        "http://example.com:80@127.0.0.1/",
        "http://example.com:port/",
        "http://example.com:99999/",
        "http://localhost/",
        "http://LOCALHOST:80/",
        "http://localhost./",
        "http://a.LocalHost/",
        "http://localhost.localdomain/",
        "http://metadata.google.internal/",
        "http://printer.local/",
        "http://router/",
        "http://127%2e0.0.1/",
        "http://%31%32%37.0.0.1/",
        "http://example.com:+80/",
        "http://example.com:-1/",
        "http://example.com: 80/",
        "http://example.com:8_0/",
        "http://example.com:0x50/",
        "http://example.com:/",
        "http://example.com:80:80/",
        "http://[2606:4700::1111]:+443/",
        "http://[2606:4700::1111]443/",
        "http://[2606:4700::1111]:/",
        "http://%6c%6fcalhost/",
        "http://example.com%2f@127.0.0.1/",
        "http://user%40example.com/",
        "http://exa\u{ad}mple.com/",
        "http://example\u{3002}com/",
        "http://example\u{ff0e}com/",
        "http://example.com\r\n.evil/",
        "http://127.0.0.1\t/",
        "http:\\\\127.0.0.1/",
        "http://example.com\\.evil/",
        "http://-a.-b/",
        "http://-a.example/",
        "http://a-.example/",
        "http://xn--localhost-/",
        "http://a.example-/",
        "http://.example.com/",
        "http://a..example.com/",
        "http://example.c/",
        "http://example.c0m/",
        "http://example.1e3/",
        "http://example.0b1/",
        "http://1.2.3.4.x/",
        // Local names.
        "http://localhost4/",
        "http://localhost6/",
        "http://localhost4.localdomain4/",
        "http://localhost6.localdomain6./",
        "http://a.localhost/",
        "http://A.b.LOCALHOST./",
        "http://metadata.goog/",
        "http://x.Metadata.Goog./",
        "http://metadata.azure.com/",
        "http://kubernetes.default.svc/",
        "http://kubernetes.default.svc.cluster.local/",
        "http://printer.lan/",
        "http://router.home/",
        "http://router.home.arpa/",
        "http://1.0.0.127.in-addr.arpa/",
        "http://wiki.intranet/",
        "http://wiki.corp/",
        "http://wiki.private/",
        "http://ip-10-0-0-1.ec2.internal/",
        "http://x.test/",
        "http://a.invalid/",
        // Special addresses.
        "http://168.63.129.16/",
        "http://0xa83f8110/",
        "http://[::ffff:168.63.129.16]/",
        "http://[64:ff9b::a83f:8110]/",
        "http://169.254.0.1/",
        "http://100.100.100.200/",
        "http://100.127.255.255/",
        "http://192.0.0.192/",
        "http://192.0.2.1/",
        "http://198.51.100.1/",
        "http://203.0.113.1/",
        "http://192.88.99.1/",
        "http://198.19.255.255/",
        "http://240.0.0.1/",
        "http://239.1.1.1/",
        "http://[2001:db8::1]/",
        "http://[2001:2::1]/",
        "http://[2001:10::1]/",
        "http://[2001:1f::1]/",
        "http://[2001:20::1]/",
        "http://[2001:2f::1]/",
        "http://[2001:1ff::1]/",
        "http://[3fff::1]/",
        "http://[3fff:fff::1]/",
        "http://[5f00::1]/",
        "http://[100::1]/",
        "http://[64:ff9b::7f00:1]/",
        "http://[64:ff9b:1::8.8.8.8]/",
        "http://[64:ff9b:1:fffe::10.0.0.1]/",
        "http://[2002:a00:1::1]/",
        "http://[2002:a83f:8110::]/",
        "http://[2002:a9fe:a9fe::]/",
        "http://[2001:0:7f00:1::]/",
        "http://[2001::f5ff:fffe]/",
        "http://[2a00:1450::0:5efe:10.0.0.1]/",
        "http://[2a00:1450::200:5efe:192.168.0.1]/",
        "http://[::ffff:0:10.0.0.1]/",
        "http://[::10.0.0.1]/",
        "http://[fec0::1]/",
        "http://[2606:4700::1111%eth0]/",
        "http://[v1.x]/",
        "http://[127.0.0.1]/",
        "http://①②⑦.0.0.1/",
        "http://127。0。0。1/",
        "http://ｌocalhost/",
    ] {
        let verdict = check(url);
        assert!(
            verdict.as_ref().is_err_and(JobError::is_correctable),
            "{url}: {verdict:?}"
        );
    }
}

proptest::proptest! {
    #[test]
    fn whatever_is_written_gets_a_verdict(url in ".{0,60}|https?://[0-9a-fx.:@%\\[\\]/-]{0,40}") {
        let _ = check(&url);
    }

    /// However an address is written, the verdict is that on the address.
    #[test]
    fn an_address_is_judged_as_itself_in_every_form(bits: u32) {
        let address = Ipv4Addr::from(bits);
        let [a, b, c, d] = address.octets();
        let mapped = address.to_ipv6_mapped();
        let forms = [
            address.to_string(),
            bits.to_string(),
            format!("0x{bits:X}"),
            format!("0{bits:o}."),
            format!("0{a:o}.0x{b:x}.{c}.{d}"),
            format!("{a}.{}", bits & 0x00ff_ffff),
            format!("{a}.{b}.{}", bits & 0xffff),
            format!("[{mapped}]"),
            format!("[::ffff:{:x}:{:x}]", bits >> 16, bits & 0xffff),
            format!("[64:ff9b::{address}]"),
        ];
        let public = check_address(address.into()).is_ok();
        for form in forms {
            proptest::prop_assert_eq!(check(&format!("http://{form}/")).is_ok(), public, "{}", form);
        }
    }
}

#[test]
fn schemes_are_the_callers_choice() {
    let guard = UrlGuard::new(|_: &()| Vec::new()).schemes(["HTTPS"]);
    assert!(guard.check("https://example.com/").is_ok());
    let refusal = guard.check("http://example.com/").unwrap_err();
    assert_eq!(
        refusal.llm_message(),
        "Guardrail violation: URLs must be https"
    );
}

#[test]
fn what_a_name_resolved_to_can_be_judged() {
    let guard = UrlGuard::new(|_: &()| Vec::new());
    assert!(
        guard
            .check_address("93.184.216.34".parse().unwrap())
            .is_ok()
    );
    assert!(guard.check_address("10.0.0.1".parse().unwrap()).is_err());
    assert!(
        guard
            .check_address("::ffff:10.0.0.1".parse().unwrap())
            .is_err()
    );
}
