//! The ACPI tables of the machine: hardware-reduced, without firmware, PCI or a fixed timer.
//!
//! Power-off is the sleep control register, reset the FADT's reset register; both are I/O ports (see [`crate::devices::power`]).

use crate::devices::{power, serial};
use crate::memory::layout;
use acpi_tables::fadt::{FADTBuilder, Flags, PmProfile};
use acpi_tables::gas::{AccessSize, AddressSpace, GAS};
use acpi_tables::madt::{EnabledStatus, IoApic, LocalInterruptController, MADT, ProcessorLocalApic};
use acpi_tables::rsdp::Rsdp;
use acpi_tables::sdt::Sdt;
use acpi_tables::xsdt::XSDT;
use acpi_tables::{Aml, aml};

const OEM_ID: [u8; 6] = *b"STRATA";
const OEM_TABLE_ID: [u8; 8] = *b"STRATAVM";
const OEM_REVISION: u32 = 1;
/// Length of a table header, at which the AML of a DSDT begins.
const HEADER_SIZE: u32 = 36;
/// DSDT revision 2: integers have 64 bits.
const DSDT_REVISION: u8 = 6;
/// `IAPC_BOOT_ARCH`: no VGA, no MSI, no PCIe ASPM, no CMOS clock; the 8042 bit stays clear too.
const BOOT_ARCH: u16 = 1 << 2 | 1 << 3 | 1 << 4 | 1 << 5;

/// A virtio-mmio device as the DSDT declares it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MmioDevice {
    /// First register.
    pub address: u64,
    /// Its interrupt: edge-triggered, active high.
    pub gsi: u32,
}

/// The bytes to put at [`layout::ACPI_START`]: RSDP first, then the tables it leads to.
///
/// Returns `None` if they do not fit below [`layout::ACPI_END`].
#[must_use]
pub fn tables(cpus: u8, devices: &[MmioDevice]) -> Option<Vec<u8>> {
    let mut image = vec![0u8; Rsdp::len().next_multiple_of(16)];
    let dsdt = append(&mut image, dsdt(devices).as_slice());
    let fadt = append(&mut image, &bytes(&fadt(dsdt)));
    let madt = append(&mut image, &bytes(&madt(cpus)));
    let mut xsdt = XSDT::new(OEM_ID, OEM_TABLE_ID, OEM_REVISION);
    xsdt.add_entry(fadt);
    xsdt.add_entry(madt);
    let xsdt = append(&mut image, &bytes(&xsdt));
    let rsdp = bytes(&Rsdp::new(OEM_ID, xsdt));
    image[..rsdp.len()].copy_from_slice(&rsdp);
    (image.len() as u64 <= layout::ACPI_END - layout::ACPI_START).then_some(image)
}

/// Appends a table at a 16-byte boundary and returns its guest-physical address.
fn append(image: &mut Vec<u8>, table: &[u8]) -> u64 {
    image.resize(image.len().next_multiple_of(16), 0);
    let address = layout::ACPI_START + image.len() as u64;
    image.extend_from_slice(table);
    address
}

fn bytes(table: &dyn Aml) -> Vec<u8> {
    let mut bytes = Vec::new();
    table.to_aml_bytes(&mut bytes);
    bytes
}

fn io_port(port: u16) -> GAS {
    GAS::new(AddressSpace::SystemIo, 8, 0, AccessSize::ByteAccess, u64::from(port))
}

fn fadt(dsdt: u64) -> acpi_tables::fadt::FADT {
    let mut fadt = FADTBuilder::new(OEM_ID, OEM_TABLE_ID, OEM_REVISION)
        .dsdt_64(dsdt)
        .preferred_pm_profile(PmProfile::EnterpriseServer)
        .flag(Flags::HwReducedAcpi)
        .flag(Flags::ResetRegSup)
        .flag(Flags::PwrButton)
        .flag(Flags::SlpButton);
    fadt.iapc_boot_arch = BOOT_ARCH.into();
    fadt.reset_reg = io_port(power::RESET_PORT);
    fadt.reset_value = power::RESET_VALUE;
    fadt.sleep_control_reg = io_port(power::SLEEP_CONTROL_PORT);
    fadt.sleep_status_reg = io_port(power::SLEEP_STATUS_PORT);
    fadt.finalize()
}

fn madt(cpus: u8) -> MADT {
    let mut madt = MADT::new(OEM_ID, OEM_TABLE_ID, OEM_REVISION, LocalInterruptController::Address(layout::LOCAL_APIC));
    for cpu in 0..cpus {
        madt.add_structure(ProcessorLocalApic::new(cpu, cpu, EnabledStatus::Enabled));
    }
    madt.add_structure(IoApic::new(0, layout::IO_APIC, 0));
    madt
}

fn dsdt(devices: &[MmioDevice]) -> Sdt {
    let mut table = Sdt::new(*b"DSDT", HEADER_SIZE, DSDT_REVISION, OEM_ID, OEM_TABLE_ID, OEM_REVISION);
    table.append_slice(&serial_device());
    table.append_slice(&panic_device());
    for (index, device) in devices.iter().enumerate() {
        table.append_slice(&mmio_device(index, *device));
    }
    // The sleep type written to the sleep control register for soft-off.
    let sleep: [&dyn Aml; 2] = [&power::SLEEP_TYPE_OFF, &aml::ZERO];
    let package = aml::Package::new(vec![sleep[0], sleep[1], sleep[1], sleep[1]]);
    table.append_slice(&bytes(&aml::Name::new("_S5_".into(), &package)));
    table
}

fn serial_device() -> Vec<u8> {
    bytes(&aml::Device::new(
        "_SB_.COM1".into(),
        vec![
            &aml::Name::new("_HID".into(), &aml::EISAName::new("PNP0501")),
            &aml::Name::new("_UID".into(), &aml::ZERO),
            &aml::Name::new(
                "_CRS".into(),
                &aml::ResourceTemplate::new(vec![
                    &aml::Interrupt::new(true, true, false, false, layout::SERIAL_GSI),
                    &aml::IO::new(serial::PORT, serial::PORT, 0, serial::PORTS),
                ]),
            ),
        ],
    ))
}

/// The device by which a guest says that its kernel panicked (QEMU's pvpanic, which Linux has a driver for).
fn panic_device() -> Vec<u8> {
    bytes(&aml::Device::new(
        "_SB_.PEVT".into(),
        vec![
            &aml::Name::new("_HID".into(), &"QEMU0001"),
            &aml::Name::new("_STA".into(), &0x0fu8),
            &aml::Name::new(
                "_CRS".into(),
                &aml::ResourceTemplate::new(vec![&aml::IO::new(power::PANIC_PORT, power::PANIC_PORT, 1, 1)]),
            ),
        ],
    ))
}

#[allow(
    clippy::cast_possible_truncation,
    reason = "virtio-mmio windows lie below 4 GiB and there are fewer than 256 of them, by the layout"
)]
fn mmio_device(index: usize, device: MmioDevice) -> Vec<u8> {
    let name = format!("_SB_.VR{index:02X}");
    bytes(&aml::Device::new(
        name.as_str().into(),
        vec![
            &aml::Name::new("_HID".into(), &"LNRO0005"),
            &aml::Name::new("_UID".into(), &(index as u8)),
            &aml::Name::new("_CCA".into(), &aml::ONE),
            &aml::Name::new(
                "_CRS".into(),
                &aml::ResourceTemplate::new(vec![
                    &aml::Memory32Fixed::new(true, device.address as u32, layout::VIRTIO_MMIO_SIZE as u32),
                    &aml::Interrupt::new(true, true, false, false, device.gsi),
                ]),
            ),
        ],
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum(bytes: &[u8]) -> u8 {
        bytes.iter().fold(0, |sum, byte| sum.wrapping_add(*byte))
    }

    fn word(bytes: &[u8], at: usize) -> u64 {
        u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
    }

    /// The tables that RSDP and XSDT lead to, each cut at the length that its header gives.
    fn follow(image: &[u8]) -> Vec<&[u8]> {
        let table = |address: u64| {
            let start = usize::try_from(address - layout::ACPI_START).unwrap();
            let length = u32::from_le_bytes(image[start + 4..start + 8].try_into().unwrap());
            &image[start..start + length as usize]
        };
        let xsdt = table(word(image, 24));
        let mut tables = vec![xsdt];
        tables.extend((36..xsdt.len()).step_by(8).map(|at| table(word(xsdt, at))));
        let fadt = tables[1];
        tables.push(table(word(fadt, 140)));
        tables
    }

    #[test]
    fn rsdp_leads_to_every_table() {
        let image = tables(2, &[]).unwrap();
        let names: Vec<_> = follow(&image).iter().map(|table| &table[..4]).collect();
        assert_eq!(names, [b"XSDT", b"FACP", b"APIC", b"DSDT"]);
    }

    #[test]
    fn every_checksum_is_right() {
        let image = tables(2, &[MmioDevice { address: layout::VIRTIO_MMIO, gsi: 5 }]).unwrap();
        assert!(follow(&image).iter().all(|table| sum(table) == 0));
        assert_eq!((sum(&image[..20]), sum(&image[..36])), (0, 0));
    }

    #[test]
    fn madt_names_each_vcpu() {
        let image = tables(3, &[]).unwrap();
        let madt = follow(&image)[2];
        let apic_ids: Vec<u8> = madt[44..44 + 3 * 8].chunks(8).map(|entry| entry[3]).collect();
        assert_eq!((apic_ids, madt.len()), (vec![0, 1, 2], 44 + 3 * 8 + 12));
    }

    #[test]
    fn fadt_names_the_power_registers() {
        let image = tables(1, &[]).unwrap();
        let fadt = follow(&image)[1];
        let registers = [116, 244, 256].map(|at| (fadt[at], word(fadt, at + 4)));
        assert_eq!(
            registers,
            [power::RESET_PORT, power::SLEEP_CONTROL_PORT, power::SLEEP_STATUS_PORT].map(|port| (1, u64::from(port)))
        );
    }

    #[test]
    fn dsdt_declares_each_device() {
        let devices = [5, 6].map(|gsi| MmioDevice { address: layout::VIRTIO_MMIO, gsi });
        let image = tables(1, &devices).unwrap();
        let dsdt = follow(&image)[3];
        let count = dsdt.windows(8).filter(|window| window == b"LNRO0005").count();
        assert_eq!(count, 2);
    }

    #[test]
    fn largest_machine_fits() {
        let devices = vec![MmioDevice { address: layout::VIRTIO_MMIO, gsi: 5 }; 19];
        assert!(tables(254, &devices).is_some());
    }
}
