//! The speed of a port as InfiniBand names it: so many lanes of some generation, rounded as EFA's driver does.

use std::fmt;

/// A width and a speed that InfiniBand knows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Link {
    lanes: u32,
    speed: Speed,
}

/// Speed of a lane.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Speed {
    name: &'static str,
    /// In `enum ib_port_speed`.
    number: u16,
    /// In units of 100 Mbit/s.
    rate: u32,
}

const SDR: Speed = Speed { name: "SDR", number: 1, rate: 25 };
const DDR: Speed = Speed { name: "DDR", number: 2, rate: 50 };
const FDR10: Speed = Speed { name: "FDR10", number: 8, rate: 100 };
const EDR: Speed = Speed { name: "EDR", number: 32, rate: 250 };
const HDR: Speed = Speed { name: "HDR", number: 64, rate: 500 };
const NDR: Speed = Speed { name: "NDR", number: 128, rate: 1000 };
const XDR: Speed = Speed { name: "XDR", number: 256, rate: 2000 };

/// What a port of at least so many Gbit/s is called.
const LINKS: [(u32, u32, Speed); 10] = [
    (1600, 8, XDR),
    (800, 8, NDR),
    (400, 8, HDR),
    (200, 4, HDR),
    (120, 12, FDR10),
    (100, 4, EDR),
    (60, 12, DDR),
    (50, 1, HDR),
    (40, 4, FDR10),
    (30, 12, SDR),
];

impl Link {
    /// That of a port of so many Gbit/s.
    pub fn of(gbps: u32) -> Link {
        let known = LINKS.iter().find(|&&(least, ..)| gbps >= least);
        known.map_or(Link { lanes: 1, speed: EDR }, |&(_, lanes, speed)| Link { lanes, speed })
    }

    /// `active_width` of a port.
    pub fn width(self) -> u8 {
        match self.lanes {
            1 => 1,
            4 => 2,
            8 => 4,
            _ => 8,
        }
    }

    /// `active_speed_ex` of a port.
    pub fn speed(self) -> u16 {
        self.speed.number
    }

    /// `active_speed` of a port, which is too short for the newest.
    pub fn short_speed(self) -> u8 {
        self.speed().min(NDR.number) as u8
    }
}

/// As the kernel has it in sysfs.
impl fmt::Display for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Link { lanes, speed } = self;
        write!(f, "{} Gb/sec ({lanes}X {})", lanes * speed.rate / 10, speed.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_those_of_efa_s_driver() {
        for (gbps, rate, width, speed) in [
            (1, "25 Gb/sec (1X EDR)", 1, 32),
            (29, "25 Gb/sec (1X EDR)", 1, 32),
            (30, "30 Gb/sec (12X SDR)", 8, 1),
            (40, "40 Gb/sec (4X FDR10)", 2, 8),
            (50, "50 Gb/sec (1X HDR)", 1, 64),
            (60, "60 Gb/sec (12X DDR)", 8, 2),
            (99, "60 Gb/sec (12X DDR)", 8, 2),
            (100, "100 Gb/sec (4X EDR)", 2, 32),
            (120, "120 Gb/sec (12X FDR10)", 8, 8),
            (200, "200 Gb/sec (4X HDR)", 2, 64),
            (400, "400 Gb/sec (8X HDR)", 4, 64),
            (800, "800 Gb/sec (8X NDR)", 4, 128),
            (1600, "1600 Gb/sec (8X XDR)", 4, 256),
        ] {
            let link = Link::of(gbps);
            assert_eq!((link.to_string().as_str(), link.width(), link.speed()), (rate, width, speed), "{gbps}");
        }
        assert_eq!(Link::of(1600).short_speed(), 128);
    }
}
