//! Any bytes as a kubeconfig, with and without a server given besides, and the certificates and keys in it.

#![no_main]

use ferry_sources::kube::check_kubeconfig;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    for master in [None, Some("https://master")] {
        match check_kubeconfig(data, master) {
            Ok(server) => assert!(server.starts_with("http")),
            Err(refused) => assert!(!refused.reason.is_empty()),
        }
    }
    // A server is a text of its own.
    if let Ok(server) = std::str::from_utf8(data)
        && let Ok(shown) = check_kubeconfig(b"", Some(server))
    {
        assert_eq!(check_kubeconfig(b"", Some(&shown)).as_ref(), Ok(&shown), "what is shown is the same server");
    }
});
