/*
 * Shows that QEMU's emulation of SVM delivers an injected interrupt twice.
 *
 * A monitor and its guest in one: both run in 32-bit protected mode without paging and share segments and interrupt
 * table. The monitor enters the guest again and again, each time with one external interrupt to be injected (EVENTINJ,
 * type 0). The guest's handler counts it and returns to the guest's only instruction, VMMCALL, which leaves the guest.
 * All other interrupts are masked. A timer that goes off every few microseconds has the emulator leave its loop then, now
 * and then right behind VMRUN. On COM1 the program says how many interrupts were delivered to the guest:
 *
 *	delivered 100000 of 100000
 *
 * on hardware. It then writes to the port of `-device isa-debug-exit,iobase=0xf4`, which ends QEMU.
 *
 *	gcc -m32 -nostdlib -static -no-pie -Wl,--build-id=none,-Ttext=0x100000 -o injected_twice injected_twice.S
 *	qemu-system-x86_64 -accel tcg,thread=single -icount shift=1 -cpu EPYC,+svm -m 64 -display none -monitor none \
 *		-serial stdio -device isa-debug-exit,iobase=0xf4 -kernel injected_twice
 */
	.set	ENTRIES, 100000
	.set	VECTOR, 0x40
	.set	EFER, 0xc0000080
	.set	EFER_SVME, 1 << 12
	.set	VM_HSAVE_PA, 0xc0010117
	/* offsets in the VMCB: AMD's manual, volume 2, appendix B */
	.set	VMCB_INTERCEPT4, 0x10	/* bits 0 and 1: VMRUN and VMMCALL */
	.set	VMCB_ASID, 0x58
	.set	VMCB_EXITCODE, 0x70
	.set	VMCB_EVENTINJ, 0xa8
	.set	VMCB_ES, 0x400
	.set	VMCB_CS, 0x410
	.set	VMCB_SS, 0x420
	.set	VMCB_DS, 0x430
	.set	VMCB_GDTR, 0x460
	.set	VMCB_IDTR, 0x480
	.set	VMCB_EFER, 0x4d0
	.set	VMCB_CR0, 0x558
	.set	VMCB_RFLAGS, 0x570
	.set	VMCB_RIP, 0x578
	.set	VMCB_RSP, 0x5d8
	.set	EXIT_VMMCALL, 0x81

	.section .text
	.globl	_start
	/* so that a loader finds it in the first 8 KiB */
	.balign	4
	.long	0x1badb002, 0, -0x1badb002

_start:
	cli
	cld
	lgdt	gdtr
	ljmp	$8, $1f
1:	mov	$16, %eax
	mov	%eax, %ds
	mov	%eax, %es
	mov	%eax, %ss
	mov	$monitor_stack_end, %esp

	/* the gate of the interrupt */
	mov	$handler, %eax
	mov	%ax, idt + VECTOR * 8
	movw	$8, idt + VECTOR * 8 + 2
	movw	$0x8e00, idt + VECTOR * 8 + 4
	shr	$16, %eax
	mov	%ax, idt + VECTOR * 8 + 6
	lidt	idtr

	/* all interrupts off, and the timer on: every fourth tick of 1.19 MHz */
	mov	$0xff, %al
	out	%al, $0x21
	out	%al, $0xa1
	mov	$0x34, %al
	out	%al, $0x43
	mov	$4, %al
	out	%al, $0x40
	xor	%al, %al
	out	%al, $0x40

	mov	$EFER, %ecx
	rdmsr
	or	$EFER_SVME, %eax
	wrmsr
	mov	$VM_HSAVE_PA, %ecx
	mov	$host_save, %eax
	xor	%edx, %edx
	wrmsr

	movl	$3, vmcb + VMCB_INTERCEPT4
	movl	$1, vmcb + VMCB_ASID
	.macro	segment offset, selector, attributes
	movw	$\selector, vmcb + \offset
	movw	$\attributes, vmcb + \offset + 2
	movl	$-1, vmcb + \offset + 4
	.endm
	segment	VMCB_CS, 8, 0xc9b
	segment	VMCB_DS, 16, 0xc93
	segment	VMCB_ES, 16, 0xc93
	segment	VMCB_SS, 16, 0xc93
	movl	$gdt_end - gdt - 1, vmcb + VMCB_GDTR + 4
	movl	$gdt, vmcb + VMCB_GDTR + 8
	movl	$idt_end - idt - 1, vmcb + VMCB_IDTR + 4
	movl	$idt, vmcb + VMCB_IDTR + 8
	movl	$EFER_SVME, vmcb + VMCB_EFER
	mov	%cr0, %eax
	mov	%eax, vmcb + VMCB_CR0

	mov	$ENTRIES, %esi
enter:
	movl	$0x80000000 | VECTOR, vmcb + VMCB_EVENTINJ
	movl	$guest, vmcb + VMCB_RIP
	movl	$guest_stack_end, vmcb + VMCB_RSP
	movl	$0x202, vmcb + VMCB_RFLAGS
	mov	$vmcb, %eax
	clgi
	vmrun
	stgi
	cmpl	$EXIT_VMMCALL, vmcb + VMCB_EXITCODE
	jne	wrong
	dec	%esi
	jnz	enter

	mov	$delivered_text, %edi
	call	print
	mov	delivered, %eax
	call	print_number
	mov	$of_text, %edi
	call	print
	mov	$ENTRIES, %eax
	call	print_number
	jmp	end
wrong:
	mov	$wrong_text, %edi
	call	print
	mov	vmcb + VMCB_EXITCODE, %eax
	call	print_number
end:
	mov	$10, %al
	call	print_byte
	mov	$0xf4, %dx
	xor	%eax, %eax
	out	%al, %dx
1:	hlt
	jmp	1b

guest:
	vmmcall
	jmp	guest

handler:
	incl	delivered
	iret

/* the text at %edi */
print:
	mov	(%edi), %al
	test	%al, %al
	jz	1f
	call	print_byte
	inc	%edi
	jmp	print
1:	ret

print_byte:
	mov	$0x3f8, %dx
	out	%al, %dx
	ret

/* %eax in decimal */
print_number:
	mov	$10, %ebx
	xor	%ecx, %ecx
1:	xor	%edx, %edx
	div	%ebx
	push	%edx
	inc	%ecx
	test	%eax, %eax
	jnz	1b
2:	pop	%eax
	add	$'0', %al
	call	print_byte
	loop	2b
	ret

delivered_text:	.asciz	"delivered "
of_text:	.asciz	" of "
wrong_text:	.asciz	"left the guest for reason "

	.balign	8
gdt:	.quad	0, 0x00cf9b000000ffff, 0x00cf93000000ffff
gdt_end:
gdtr:	.word	gdt_end - gdt - 1
	.long	gdt
idtr:	.word	idt_end - idt - 1
	.long	idt

	.section .data
	.balign	8
idt:	.fill	256, 8, 0
idt_end:
	.balign	4096
vmcb:	.fill	4096, 1, 0
host_save:
	.fill	4096, 1, 0
	.fill	4096, 1, 0
monitor_stack_end:
	.fill	4096, 1, 0
guest_stack_end:
delivered:
	.long	0
