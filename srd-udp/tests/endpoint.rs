//! The async front end, two endpoints on the loopback interface.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use srd_core::{Config, Failure, Span};
use srd_udp::{Endpoint, Options, SendError, StartError, UdpOptions, WaitMode};

fn options() -> Options {
    let driver = UdpOptions { wait: WaitMode::Sleep, ..UdpOptions::default() };
    Options { driver, ..Options::default() }
}

fn loopback() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

fn endpoint(change: impl FnOnce(&mut Options)) -> Endpoint {
    let mut options = options();
    change(&mut options);
    Endpoint::bind(loopback(), options).unwrap()
}

/// Fails a test that hangs.
async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(120), future).await.unwrap_or_else(|_| panic!("{what} takes too long"))
}

/// Message number `n`, of a length between 0 and 300,000 bytes that depends on it.
fn message(n: u32) -> Bytes {
    let len = match n % 10 {
        0 => 0,
        1..7 => n * 7 % 3000,
        7..9 => n * 101 % 30_000,
        _ => n * 1009 % 300_000,
    };
    let mut bytes = n.to_le_bytes().to_vec();
    bytes.extend((0..len).map(|i| (i ^ n) as u8));
    bytes.into()
}

/// Sends messages `0..count` from `a` to `b`, all at once.
async fn send_all(a: &Endpoint, b: &Endpoint, count: u32) {
    let sends: Vec<_> = (0..count).map(|n| a.send_to(b.local_addr(), message(n))).collect();
    // Polled together, without another crate for it.
    let mut sends: Vec<_> = sends.into_iter().map(Box::pin).collect();
    std::future::poll_fn(|cx| {
        sends.retain_mut(|send| match send.as_mut().poll(cx) {
            std::task::Poll::Ready(outcome) => {
                outcome.unwrap();
                false
            }
            std::task::Poll::Pending => true,
        });
        if sends.is_empty() { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
}

/// Receives `count` messages from `from` and checks that each of `0..count` comes once, intact.
async fn receive_all(b: &Endpoint, from: &Endpoint, count: u32) {
    let mut seen = BTreeMap::new();
    while seen.len() < count as usize {
        let m = b.recv().await.unwrap();
        assert_eq!(m.from, from.local_addr());
        let n = u32::from_le_bytes(*m.data.first_chunk().unwrap());
        assert_eq!(m.data, message(n), "message {n}");
        assert_eq!(seen.insert(n, ()), None, "message {n} came twice");
    }
    assert!(seen.into_keys().eq(0..count));
}

#[tokio::test]
async fn messages_of_all_sizes_both_ways() {
    let (a, b) = (endpoint(|_| {}), endpoint(|_| {}));
    soon("the exchange", async {
        tokio::join!(
            send_all(&a, &b, 1000),
            receive_all(&b, &a, 1000),
            send_all(&b, &a, 1000),
            receive_all(&a, &b, 1000)
        )
    })
    .await;
    let stats = soon("stats", a.stats()).await.unwrap();
    assert_eq!((stats.protocol.messages_sent, stats.protocol.messages_received), (1000, 1000));
    assert_eq!(stats.peers.len(), 1);
    soon("closing", async { tokio::try_join!(a.close(), b.close()) }).await.unwrap();
    assert_eq!(soon("recv", b.recv()).await, None);
}

#[tokio::test]
async fn adaptive_wait_ping_pong() {
    let spin = WaitMode::Adaptive { spin: Duration::from_micros(20) };
    let (a, b) = (endpoint(|o| o.driver.wait = spin), endpoint(|o| o.driver.wait = spin));
    let ping = async {
        for n in 0..100 {
            a.send_to(b.local_addr(), message(n)).await.unwrap();
            assert_eq!(a.recv().await.unwrap().data, message(n));
        }
    };
    let pong = async {
        for _ in 0..100 {
            let m = b.recv().await.unwrap();
            b.send_to(m.from, m.data).await.unwrap();
        }
    };
    soon("ping-pong", async { tokio::join!(ping, pong) }).await;
}

#[tokio::test]
async fn unread_messages_hold_the_sender_back() {
    let (a, b) = (endpoint(|_| {}), endpoint(|o| o.receive_budget = 100_000));
    let data = Bytes::from(vec![7; 10_000]);
    let mut sends: Vec<_> = (0..60).map(|_| Box::pin(a.send_to(b.local_addr(), data.clone()))).collect();
    // Sends finish until both halves of the budget are used up; then the receiver is not ready.
    let mut done = 0;
    soon("rnr", async {
        while a.stats().await.unwrap().protocol.rnr == 0 {
            tokio::task::yield_now().await;
            std::future::poll_fn(|cx| {
                let before = sends.len();
                sends.retain_mut(|send| send.as_mut().poll(cx).is_pending());
                done += before - sends.len();
                std::task::Poll::Ready(())
            })
            .await;
        }
    })
    .await;
    assert!(done <= 21, "{done} of 10,000 bytes in a budget of 2 x 100,000");
    let rest = std::future::poll_fn(|cx| {
        sends.retain_mut(|send| send.as_mut().poll(cx).is_pending());
        if sends.is_empty() { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    });
    let read = async {
        for _ in 0..60 {
            assert_eq!(b.recv().await.unwrap().data, data);
        }
    };
    soon("the rest", async { tokio::join!(rest, read) }).await;
}

#[tokio::test]
async fn message_beyond_the_budget_is_refused() {
    let (a, b) = (endpoint(|_| {}), endpoint(|o| o.receive_budget = 10_000));
    let outcome = soon("refusal", a.send_to(b.local_addr(), vec![0; 10_001].into())).await;
    assert!(matches!(outcome, Err(SendError::Failed(Failure::Refused(_)))), "{outcome:?}");
}

#[tokio::test]
async fn silent_peer_is_unreachable() {
    let a = endpoint(|o| o.protocol = Config { peer_timeout: Span::from_millis(50), ..Config::default() });
    let silent = std::net::UdpSocket::bind(loopback()).unwrap();
    let outcome = soon("failure", a.send_to(silent.local_addr().unwrap(), Bytes::from_static(b"hello"))).await;
    assert_eq!(outcome, Err(SendError::Failed(Failure::Unreachable)));
}

#[tokio::test]
async fn peers_that_are_gone_make_room_for_others() {
    let a = endpoint(|o| o.protocol.max_peers = 1);
    for _ in 0..3 {
        let b = endpoint(|_| {});
        soon("a message", a.send_to(b.local_addr(), message(1))).await.unwrap();
        let c = endpoint(|_| {});
        assert_eq!(soon("the answer", a.send_to(c.local_addr(), message(2))).await, Err(SendError::TooManyPeers));
        soon("another message", a.send_to(b.local_addr(), message(3))).await.unwrap();
        // It has been answered, so the other side knows.
        soon("the good-bye", b.close()).await.unwrap();
    }
}

#[tokio::test]
async fn close_delivers_first_and_drop_does_not() {
    let (a, b) = (endpoint(|_| {}), endpoint(|_| {}));
    let (sent, closed) = soon("closing", async {
        tokio::join!(a.send_to(b.local_addr(), message(9)), async {
            tokio::task::yield_now().await;
            a.close().await
        })
    })
    .await;
    assert_eq!(sent, Ok(()));
    closed.unwrap();
    assert_eq!(soon("recv", b.recv()).await.unwrap().data, message(9));
    assert_eq!(soon("send", a.send_to(b.local_addr(), message(1))).await, Err(SendError::Closed));
    assert!(a.stats().await.is_none());
    soon("closing again", a.close()).await.unwrap();
    drop(b);
    drop(endpoint(|_| {}));
}

/// The bytes of a message may be an object of the application, which is dropped when the message is done.
#[tokio::test]
async fn a_panic_in_the_engine_is_told() {
    struct Trap;
    impl AsRef<[u8]> for Trap {
        fn as_ref(&self) -> &[u8] {
            b"trap"
        }
    }
    impl Drop for Trap {
        fn drop(&mut self) {
            panic!("on purpose");
        }
    }
    let (a, b) = (endpoint(|_| {}), endpoint(|_| {}));
    soon("a message", b.send_to(a.local_addr(), message(1))).await.unwrap();
    let outcome = soon("the end", a.send_to(b.local_addr(), Bytes::from_owner(Trap))).await;
    assert_eq!(outcome, Err(SendError::Closed));
    let e = soon("closing", a.close()).await.expect_err("it had not been asked to end");
    assert!(e.to_string().contains("panic"), "{e}");
    assert_eq!(soon("recv", a.recv()).await.unwrap().data, message(1), "what has arrived stays");
    assert_eq!(soon("recv", a.recv()).await, None);
}

#[tokio::test]
async fn a_message_that_waits_to_be_read_keeps_its_sender() {
    let b = endpoint(|o| {
        o.receive_budget = 1000;
        o.protocol.max_peers = 1;
    });
    let (a, c) = (endpoint(|_| {}), endpoint(|_| {}));
    // One that was handed over uses the budget up, and so does one that waits.
    let data = Bytes::from(vec![7; 872]);
    for _ in 0..2 {
        soon("a message", a.send_to(b.local_addr(), data.clone())).await.unwrap();
    }
    soon("the good-bye", a.close()).await.unwrap();
    // Another one takes the place of who has gone.
    let mut send = Box::pin(c.send_to(b.local_addr(), data.clone()));
    soon("rnr", async {
        while c.stats().await.unwrap().protocol.rnr == 0 {
            let outcome = std::future::poll_fn(|cx| std::task::Poll::Ready(send.as_mut().poll(cx))).await;
            assert!(outcome.is_pending(), "nobody has read: {outcome:?}");
            tokio::task::yield_now().await;
        }
    })
    .await;
    let read = async {
        for from in [&a, &a, &c] {
            assert_eq!(b.recv().await.unwrap().from, from.local_addr());
        }
    };
    soon("the rest", async { tokio::join!(async { send.await.unwrap() }, read) }).await;
}

/// Whoever has heard that the endpoint is closed can use its port.
#[tokio::test]
async fn the_port_is_free_when_closing_ends() {
    for _ in 0..10 {
        let (a, b) = (endpoint(|_| {}), endpoint(|_| {}));
        soon("a message", a.send_to(b.local_addr(), message(1))).await.unwrap();
        let closed_twice = async {
            while a.stats().await.is_some() {
                tokio::task::yield_now().await;
            }
            a.close().await.unwrap();
            Endpoint::bind(a.local_addr(), options()).map(drop)
        };
        let (closed, again) = soon("closing", async { tokio::join!(a.close(), closed_twice) }).await;
        closed.unwrap();
        again.expect("the port is free");
    }
}

#[tokio::test]
async fn bad_input_is_explained() {
    let a = endpoint(|_| {});
    for (to, text) in [
        ("127.0.0.1:0", "cannot send to 127.0.0.1:0: port 0 is nobody's port"),
        ("0.0.0.0:9", "cannot send to 0.0.0.0:9: the unspecified address is nobody's address"),
        ("[::1]:9", "cannot send to [::1]:9: this endpoint speaks IPv4 only"),
        ("224.0.0.1:9", "cannot send to 224.0.0.1:9: it is a multicast address"),
        ("255.255.255.255:9", "cannot send to 255.255.255.255:9: it is the broadcast address"),
    ] {
        assert_eq!(a.send_to(to.parse().unwrap(), Bytes::new()).await.unwrap_err().to_string(), text);
    }
    let v6 = Endpoint::bind("[::1]:0".parse().unwrap(), options()).unwrap();
    let e = v6.send_to("[::ffff:127.0.0.1]:9".parse().unwrap(), Bytes::new()).await.unwrap_err();
    assert!(e.to_string().ends_with("write the IPv4 address without the IPv6 prefix"), "{e}");
    let e = v6.send_to("[fe80::1]:9".parse().unwrap(), Bytes::new()).await.unwrap_err();
    assert!(e.to_string().ends_with("a link-local address needs the number of its interface, as in fe80::1%2"), "{e}");
    let small = endpoint(|o| o.protocol.max_message = 1000);
    let e = small.send_to(a.local_addr(), vec![0; 1001].into()).await.unwrap_err();
    assert_eq!(e.to_string(), "message of 1001 bytes, at most 1000 are permitted");

    let start = |change: fn(&mut Options)| -> StartError {
        let mut options = options();
        change(&mut options);
        Endpoint::bind(loopback(), options).unwrap_err()
    };
    assert_eq!(
        start(|o| o.max_outstanding = 0).to_string(),
        "option max_outstanding is 0, must be in 1..=65536 (send_queue)"
    );
    assert!(start(|o| o.driver.wait = WaitMode::Spin).to_string().starts_with("option driver.wait is Spin"));
    assert!(start(|o| o.protocol.paths = 0).to_string().starts_with("protocol option paths is 0"));
}
