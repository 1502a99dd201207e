//! The list of devices.

use std::cell::UnsafeCell;
use std::ffi::{c_char, c_int, c_void};
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::time::Duration;

use verbs_shim::Nic;
use verbs_shim::counters::node_guid;
use verbs_shim::lock::{self, Mutex};

use crate::abi::{arg, export, pointer, quiet};
use crate::bindings::{IBV_NODE_UNSPECIFIED, IBV_TRANSPORT_UNSPECIFIED, ibv_device};
use crate::context::{Outlet, Sink};
use crate::errno::{EINVAL, ENOMEM, Errno};
use crate::rings::Rings;
use crate::{config, fork, log, sysfs};

/// A device. It lives as long as the process, because programs keep pointers to it beyond the list that they got.
#[repr(C)]
pub(crate) struct Device {
    public: UnsafeCell<ibv_device>,
    index: usize,
    config: verbs_shim::NicConfig,
    card: Mutex<Shared>,
}

/// The card, which all contexts of a device share: they have one GID and reach each other's queue pairs.
#[derive(Default)]
struct Shared {
    open: Option<Card>,
    contexts: usize,
    /// The port that the card had when it was open, so that it gets the same GID again.
    port: u16,
}

/// An open card, who gets its events, and what of it programs use without calling anybody.
#[derive(Clone)]
pub(crate) struct Card {
    pub(crate) nic: Arc<Nic>,
    pub(crate) rings: Arc<Rings>,
    pub(crate) sink: Arc<Sink>,
}

// The public part is only written while the table is made.
unsafe impl Sync for Device {}

/// How long the end of a process waits for a device that is being opened or closed.
const PATIENCE: Duration = Duration::from_millis(100);

struct Table {
    generation: u32,
    devices: Vec<Device>,
}

/// The table of this process; of its parent, if it was not asked for since the fork. Tables are never freed.
static TABLE: AtomicPtr<Table> = AtomicPtr::new(null_mut());

fn table() -> Result<&'static Table, Errno> {
    loop {
        let current = TABLE.load(Ordering::Acquire);
        if let Some(table) = unsafe { current.as_ref() }
            && table.generation == fork::generation()
        {
            return Ok(table);
        }
        let fresh = Box::into_raw(Box::new(Table::new()?));
        if TABLE.compare_exchange(current, fresh, Ordering::AcqRel, Ordering::Acquire).is_err() {
            drop(unsafe { Box::from_raw(fresh) });
        }
    }
}

impl Table {
    fn new() -> Result<Table, Errno> {
        let configs = config::start_log().and_then(|()| config::devices()).map_err(|error| {
            log::error(format_args!("{error}"));
            EINVAL
        })?;
        sysfs::prepare(&configs);
        let devices = configs.into_iter().enumerate().map(|(index, config)| Device::new(index, config)).collect();
        Ok(Table { generation: fork::generation(), devices })
    }
}

impl Device {
    fn new(index: usize, config: verbs_shim::NicConfig) -> Device {
        let port = config.addr.port();
        let public = ibv_device {
            _ops: [null_mut(); 2],
            node_type: IBV_NODE_UNSPECIFIED,
            transport_type: IBV_TRANSPORT_UNSPECIFIED,
            name: text(&config.name),
            dev_name: text(&format!("uverbs{index}")),
            dev_path: text(&sysfs::path(&format!("class/infiniband_verbs/uverbs{index}"))),
            ibdev_path: text(&sysfs::path(&format!("class/infiniband/{}", config.name))),
        };
        let card = Mutex::new(Shared { port, ..Shared::default() });
        Device { public: UnsafeCell::new(public), index, config, card }
    }

    unsafe fn of<'a>(device: *const ibv_device) -> Result<&'a Device, Errno> {
        unsafe { arg(device.cast::<Device>()) }
    }

    /// Its node GUID, big endian.
    pub(crate) fn guid(&self) -> u64 {
        u64::from_ne_bytes(node_guid(self.config.addr.ip(), self.index))
    }

    pub(crate) fn name(&self) -> &str {
        &self.config.name
    }

    /// The card, opened for the first context.
    pub(crate) fn acquire(&self) -> Result<Card, Errno> {
        let mut shared = self.card.lock();
        if shared.open.is_none() {
            let mut config = self.config.clone();
            config.addr.set_port(shared.port);
            let sink = Arc::new(Sink::default());
            let nic = Nic::open(config, Box::new(Outlet(sink.clone()))).map_err(|error| {
                log::error(format_args!("cannot open {}: {}", self.name(), error.whole()));
                Errno::from(&error)
            })?;
            sysfs::tell_gid(self.name(), nic.gid());
            shared.port = nic.gid().addr().map_or(shared.port, |addr| addr.port());
            let nic = Arc::new(nic);
            shared.open = Some(Card { rings: Arc::new(Rings::new(nic.clone())), nic, sink });
        }
        shared.contexts += 1;
        Ok(shared.open.clone().expect("it was opened above"))
    }

    /// Whether a signal handler interrupted this thread while it opened or closed the card.
    pub(crate) fn is_held_here(&self) -> bool {
        lock::is_held_here(&self.card)
    }

    /// A context is done with the card, which is closed with the last one: nothing of it runs any more then.
    pub(crate) fn release(&self, card: Card) {
        let mut shared = self.card.lock();
        shared.contexts -= 1;
        if shared.contexts == 0 {
            card.rings.stop();
            shared.open = None;
        }
        // Before anybody can open it again.
        drop(card);
        drop(shared);
    }
}

/// The process ends. A program that did not close its devices may have taken messages that are not acknowledged yet.
pub(crate) fn farewell() {
    let Some(table) = (unsafe { TABLE.load(Ordering::Acquire).as_ref() }) else { return };
    if table.generation != fork::generation() {
        return;
    }
    for device in &table.devices {
        // Another thread may have it for ever.
        if let Some(shared) = lock::try_lock_for(&device.card, PATIENCE)
            && let Some(card) = &shared.open
        {
            card.nic.farewell();
        }
    }
}

/// What a program calls a device, in this process: after a fork it may hold one of its parent's.
pub(crate) unsafe fn resolve(device: *const ibv_device) -> Result<&'static Device, Errno> {
    let index = unsafe { Device::of(device)? }.index;
    table()?.devices.get(index).ok_or(EINVAL)
}

fn text<const N: usize>(text: &str) -> [c_char; N] {
    let mut out = [0; N];
    for (to, from) in out[..N - 1].iter_mut().zip(text.bytes()) {
        *to = from as c_char;
    }
    out
}

export!(
    "IBVERBS_1.1",
    fn ibv_get_device_list(num_devices: *mut c_int) -> *mut *mut ibv_device {
        if let Some(n) = unsafe { num_devices.as_mut() } {
            *n = 0;
        }
        pointer(|| {
            let devices = &table()?.devices;
            let list =
                unsafe { libc::calloc(devices.len() + 1, size_of::<*mut ibv_device>()) }.cast::<*mut ibv_device>();
            if list.is_null() {
                return Err(ENOMEM);
            }
            for (i, device) in devices.iter().enumerate() {
                unsafe { list.add(i).write(device.public.get()) };
            }
            if let Some(n) = unsafe { num_devices.as_mut() } {
                *n = devices.len() as c_int;
            }
            Ok(list)
        })
    }
);

export!(
    "IBVERBS_1.1",
    fn ibv_free_device_list(list: *mut *mut ibv_device) {
        unsafe { libc::free(list.cast::<c_void>()) };
    }
);

export!(
    "IBVERBS_1.1",
    fn ibv_get_device_name(device: *mut ibv_device) -> *const c_char {
        if device.is_null() { std::ptr::null() } else { unsafe { (&raw const (*device).name).cast() } }
    }
);

export!(
    "IBVERBS_1.1",
    fn ibv_get_device_guid(device: *mut ibv_device) -> u64 {
        quiet(0, || unsafe { Device::of(device) }.map_or(0, Device::guid))
    }
);

export!(
    "IBVERBS_1.9",
    fn ibv_get_device_index(device: *mut ibv_device) -> c_int {
        quiet(-1, || unsafe { Device::of(device) }.map_or(-1, |device| device.index as c_int))
    }
);
