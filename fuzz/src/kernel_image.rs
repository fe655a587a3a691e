//! The unpacking of a kernel's image, which may come out of a guest's disk, and the reading of what is in it.

use strata_kmod_build::kernel_image;
use vmm::kernel_image::KernelImage;

/// Bytes of the largest kernel that is unpacked, and of what its decompressor may take.
const LARGEST: usize = 16 << 20;

/// Runs an input.
///
/// # Panics
/// When a property that the target checks does not hold.
pub fn run(data: &[u8]) {
    let Ok(kernel) = kernel_image::extract_within(data, LARGEST) else { return };
    assert!(kernel.len() <= LARGEST && kernel.starts_with(b"\x7fELF"));
    let Ok(image) = KernelImage::read(&kernel) else { return };
    // That its parts lie in it, slices of them show.
    let _ = (image.loaded().count(), image.btf());
    let _ = image.kallsyms().map(|kallsyms| kallsyms.text(0));
}
