#include "textflag.h"

// func prefetch(base unsafe.Pointer, size uintptr, rows *uint32, n uintptr)
TEXT ·prefetch(SB), NOSPLIT|NOFRAME, $0-32
	MOVQ base+0(FP), AX
	MOVQ size+8(FP), BX
	MOVQ rows+16(FP), CX
	MOVQ n+24(FP), DX
again:
	MOVL (CX), SI
	IMULQ BX, SI
	PREFETCHT0 (AX)(SI*1)
	ADDQ $4, CX
	DECQ DX
	JNE  again
	RET
